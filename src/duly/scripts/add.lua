#!lua
-- add: accept one job of the usual kind: in the normal lane, without a reply, in the place of none, with a body that is not long.
--
-- moves    (new) -> scheduled or ready
-- uses     clock records replies changes specs
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters, limits and pauses of topics
--          jobs      hash    member -> record
--          next_due  zset    topic -> when its earliest job is due
--          ready_topics  set  topics with ready jobs
--          events    stream  what happened
--          timer     stream  the earliest due time changed
--          woken_topics  stream  names of topics that were made ready, for workers with many
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic     of the job
--          member    of the job
--          spec      see lib/specs.lua
--          rest      request, options and body
-- returns  as enqueue.lua does for one job; nil if what stands there is damaged: then enqueue.lua is to be asked
-- cost     O(log n)

local now_floor, now_ceil = clock(now_ms)
name_topic(topic, 1)
local mark, ms = decode(SPEC, spec)
local due_ms, revision, on_conflict = time_of(mark, ms, now_floor, now_ceil), take_numbers(2), mark % ASKS
mark = mark % 64 - mark % 8
local is_ready, head, record = due_ms <= now_floor, nil, nil
if is_ready then
  head = run_of(mark + READY, 0, revision + 1, due_ms) .. encode('>I8c6', revision, rest)
  record = head .. cut(rest, REQUEST_LENGTH + 1)
else
  head = encode(WAITING, mark, revision, rest, due_ms)
  record = encode('>BI8', mark, revision) .. rest
end
-- Looked up and written in one, where nothing is in the way.
local is_full = shard[LIMITED] and (met.room_of(topic) or 1) < 1
if is_full or redis.call('HSETNX', jobs, member, record) == 0 then
  local old = redis.call('HGET', jobs, member)
  if not old then return {now_floor, revision, {'full 0 0 0'}} end
  if not is_whole(old) then return nil end
  return {now_floor, revision, {(met.answer_to(read(member, old), on_conflict, rest, now_floor))}}
end
note('enqueued', member, head)
emit(now_floor, nonce)
if is_ready then
  redis.call('XADD', stream(topic, NORMAL), string.format('%d-0', revision + 1), 'job', member)
  count_ready(topic, 1)
  woken[topic] = 1
  wake_topics(now_floor)
else
  redis.call('ZADD', due_of(topic), due_ms, member)
  redis.call('HINCRBY', topics, topic .. ':scheduled', 1)
  if redis.call('ZADD', next_due, 'LT', 'CH', due_ms, topic) == 1 then tell_timers({topic, due_ms}, '') end
end
return {now_floor, revision, {due_ms}}
