#!lua flags=allow-oom
-- beat: say that a worker lives (or has gone), and forget those that fell silent long ago.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
--          workers   hash    worker -> what it says of itself
--          beats     zset    worker -> when it was heard last
--          claims    hash    worker -> its last claim
-- ARGV     now_ms    '' means the server's clock
--          worker    its name
--          about     JSON; '' when it says good-bye
--          forget_ms how long a silent worker is remembered
-- returns  now_ms
-- cost     O(log n)

local CLAIM_KEPT_MS = 600000

local now = clock(now_ms)
if about ~= '' then
  redis.call('HSET', workers, worker, about)
  redis.call('ZADD', beats, now, worker)
end
-- A claim is asked for again within seconds, or never: what a killed worker claimed last need not be remembered for long.
local silent = redis.call('ZRANGE', beats, '-inf', now - CLAIM_KEPT_MS, 'BYSCORE', 'LIMIT', 0, 1000)
if #silent > 0 then redis.call('HDEL', claims, unpack(silent)) end
local gone = redis.call('ZRANGE', beats, '-inf', now - tonumber(forget_ms), 'BYSCORE', 'LIMIT', 0, 100)
if about == '' then gone[#gone + 1] = worker end
if #gone > 0 then
  redis.call('ZREM', beats, unpack(gone))
  redis.call('HDEL', workers, unpack(gone))
  redis.call('HDEL', claims, unpack(gone))
end
return now
