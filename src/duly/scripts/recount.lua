#!lua flags=allow-oom
-- recount: set the counters of topics to what a full look found, if nothing moved meanwhile.
--
-- moves    nothing
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
-- ARGV     events    counter of the last event when the look began
--          done_bytes  what succeeded and cancelled jobs weigh
--          dead_bytes  what dead jobs weigh
--          field...  pairs: '<topic>:<state>' and its number
-- returns  {counters that were wrong}, or nothing if the shard moved
-- cost     O(fields)

if (redis.call('HGET', meta, 'events') or '0') ~= events then return false end
local wrong = {}
for at = field_at, #ARGV, 2 do
  local was = redis.call('HGET', topics, ARGV[at]) or '0'
  if was ~= ARGV[at + 1] then
    wrong[#wrong + 1] = ARGV[at]
    redis.call('HSET', topics, ARGV[at], ARGV[at + 1])
  end
end
local totals = redis.call('HMGET', meta, 'done_bytes', 'dead_bytes')
if (totals[1] or '0') ~= done_bytes then wrong[#wrong + 1] = 'done_bytes' end
if (totals[2] or '0') ~= dead_bytes then wrong[#wrong + 1] = 'dead_bytes' end
redis.call('HSET', meta, 'done_bytes', done_bytes, 'dead_bytes', dead_bytes)
return wrong
