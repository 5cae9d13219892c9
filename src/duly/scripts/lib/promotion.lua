-- promotion: take what is due out of `due`.  Shared by promote and claim.

-- Call `each` with the due jobs of the named topics, earliest first, after those that were passed before; the answer is the
-- topics not named.
local function for_each_due(now_ms, passed, limit, keep_ms, each)
  local unnamed = {}
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if not head[1] or tonumber(head[2]) > now_ms then return unnamed end
  local found = redis.call('ZRANGE', due, '-inf', now_ms, 'BYSCORE', 'LIMIT', passed, limit, 'WITHSCORES')
  local members, owners, dues, size = {}, {}, {}, 0
  local topic, begins = '', ''
  for at = 1, #found, 2 do
    -- Neighbours are mostly of one topic.
    if begins == '' or find(found[at], begins, 1, true) ~= 1 then
      topic = topic_of(found[at])
      begins = topic .. '/'
    end
    if first_key[topic] then
      size = size + 1
      members[size], owners[size], dues[size] = found[at], topic, tonumber(found[at + 1])
    else
      unnamed[topic] = true
    end
  end
  if size == 0 then return unnamed end
  local records = redis.call('HMGET', jobs, unpack(members))
  if unscheduled[1] then
    for at = 1, size do unscheduled[#unscheduled + 1] = members[at] end
  else
    unscheduled = members
  end
  for at = 1, size do
    local member, record = members[at], records[at]
    local mark = record and string.byte(record)
    -- An id without a job must not block the line: it is dropped.
    if mark and mark % 8 == SCHEDULED then
      local expires = mark % 64 >= 32 and wishes_of(record, mark) or 0
      if expires > 0 and expires < now_ms then
        local job = read(member, record)
        job[DUE] = dues[at]
        finish('cancelled', job, owners[at], CANCELLED, now_ms, keep_ms, '{"type":"expired"}', 'expired')
      else
        each(member, owners[at], record, dues[at], mark)
      end
    end
  end
  return unnamed
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
