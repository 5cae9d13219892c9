#!lua flags=allow-oom
-- refuse: count wrong API keys of addresses for all processes of a service, and tell how long to refuse each address.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
--          wrong_keys  zset   address -> millisecond at which its last wrong key is forgotten
-- ARGV     now_ms    '' means the server's clock
--          each_ms   for how long a wrong key counts; of several, one after the other is forgotten
--          burst     this many at once are let through
--          most      addresses that are remembered
--          wrong...  two for each address: its name, how many wrong keys came since the last call
-- returns  {for each address: milliseconds until it may send another key}
-- cost     O(addresses * log n)

local now, each, told = clock(now_ms), tonumber(each_ms), {}
redis.call('ZREMRANGEBYSCORE', wrong_keys, '-inf', now)
for at = wrong_at, #ARGV, 2 do
  local until_ms = math.max(tonumber(redis.call('ZSCORE', wrong_keys, ARGV[at]) or now), now) + ARGV[at + 1] * each
  redis.call('ZADD', wrong_keys, string.format('%d', until_ms), ARGV[at])
  told[#told + 1] = math.max(0, until_ms - now - (burst - 1) * each)
end
-- Those that sent the fewest are forgotten first.
redis.call('ZREMRANGEBYRANK', wrong_keys, 0, -most - 1)
local last = redis.call('ZRANGE', wrong_keys, -1, -1, 'WITHSCORES')
if last[2] then redis.call('PEXPIRE', wrong_keys, math.max(1, last[2] - now)) end
return told
