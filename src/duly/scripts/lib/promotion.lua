-- promotion: move what is due from `due` to the ready streams.  Shared by promote and claim.

-- Decide: which due jobs of the named topics to move, earliest first; what else stands in their way.
local function choose_due(now_ms, limit)
  local chosen = {moving = {}, expired = {}, dangling = {}, unnamed = {}}
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if not head[1] or tonumber(head[2]) > now_ms then
    chosen.next_due = head[2]
    return chosen
  end
  local found = redis.call('ZRANGE', due, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  local members, dues = {}, {}
  for at = 1, #found, 2 do
    local topic = topic_of(found[at])
    if first_key[topic] then
      members[#members + 1] = found[at]
      dues[#dues + 1] = tonumber(found[at + 1])
    else
      chosen.unnamed[topic] = true
    end
  end
  for at, job in ipairs(fetch(members)) do
    if not job or job.state ~= SCHEDULED then
      -- An id without a job must not block the line.
      chosen.dangling[#chosen.dangling + 1] = members[at]
    else
      job.due, job.topic = dues[at], topic_of(job.member)
      if job.expires > 0 and job.expires < now_ms then
        chosen.expired[#chosen.expired + 1] = job
        event('cancelled', job, job.attempts, job.due, '', '', '', 'expired')
      else
        chosen.moving[#chosen.moving + 1] = job
        event('promoted', job, job.attempts, job.due)
      end
    end
  end
  return chosen
end

-- Write: streams first and `due` last, so that a failure half-way leaves a job twice, never nowhere.
local function move_due(chosen, now_ms, keep_ms)
  local gone = chosen.dangling
  if #chosen.moving > 0 then
    local entry = take_numbers(#chosen.moving)
    for at, job in ipairs(chosen.moving) do
      line_up(job, job.topic, entry + at - 1)
      put(job)
      count(job.topic, SCHEDULED, -1)
      count(job.topic, READY, 1)
      gone[#gone + 1] = job.member
    end
  end
  for _, job in ipairs(chosen.expired) do
    finish(job, job.topic, CANCELLED, now_ms, keep_ms, '{"type":"expired"}')
    gone[#gone + 1] = job.member
  end
  if #gone == 0 then return end
  write_records()
  puts = {}
  redis.call('ZREM', due, unpack(gone))
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  chosen.next_due = head[2]
end

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end
