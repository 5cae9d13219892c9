-- promotion: take the due jobs of a topic out of `due`.  Shared by promote and claim.

-- Call `each` with up to `limit` due jobs of a topic, earliest first, behind those that this call took before; the answer is
-- how many were taken, and whether `each` refused the next one, which stays with all that stand behind it.
local function for_each_due(topic, now_ms, limit, keep_ms, each)
  local passed = unscheduled[topic] and #unscheduled[topic] or 0
  local found = redis.call('ZRANGE', due_of(topic), '-inf', now_ms, 'BYSCORE', 'LIMIT', passed, limit, 'WITHSCORES')
  local members, size = {}, #found / 2
  if size == 0 then
    -- The index of topics said otherwise: left as it is, it would call the timers again at once.
    reindexed[topic] = true
    return 0, false
  end
  for at = 1, size do members[at] = found[2 * at - 1] end
  local records = redis.call('HMGET', key.jobs, unpack(members))
  for at = 1, size do
    local member, record, due_ms = members[at], records[at], tonumber(found[2 * at])
    unschedule(member, topic)
    local mark = record and string.byte(record)
    -- An id without a job must not block the line: it is dropped.
    if record and not is_whole(record) then
      damage.put_aside(member, record)
    elseif mark and mark % 8 == SCHEDULED then
      local expires = mark % 64 >= 32 and wishes_of(record, mark) or 0
      if expires > 0 and expires < now_ms then
        local job = read(member, record)
        job[DUE] = due_ms
        ages.expire(job, topic, now_ms, keep_ms)
      elseif each(member, topic, record, due_ms, mark) == false then
        local taken = unscheduled[topic]
        taken[#taken] = nil
        if #taken == 0 then unscheduled[topic] = nil end
        return at - 1, true
      end
    end
  end
  return size, false
end

-- The record of a due job as the beginning of a run: its first if there was none.
local function start_of(record, due_ms)
  local mark, attempts, crashes, verb, marks = decode(START, record)
  if mark % 128 >= 64 then return mark, attempts, crashes, verb, marks, cut(record, ENDED_AT) end
  return mark + 64, 0, 0, 0, 0, NOT_ENDED .. NOT_CLAIMED .. encode(NUMBER, due_ms) .. cut(record, 2)
end

local function promote(member, topic, record, due_ms, number)
  local mark, attempts, crashes, verb, marks, rest = start_of(record, due_ms)
  line_up(member, topic, lane_in(mark, crashes), number)
  keep('promoted', member, encode(START, mark + READY, attempts, crashes, verb, marks, number) .. rest)
  count(topic, SCHEDULED, -1)
  count(topic, READY, 1)
end
