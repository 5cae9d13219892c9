#!lua flags=allow-oom
-- pace: hold a run to its rate, however many processes take part in it.
--
-- moves    nothing
-- KEYS     pace      hash    run -> microsecond at which its next call may leave
-- ARGV     run       whose rate it is
--          takes_us  how long this call keeps the next one back
-- returns  microseconds to wait before this call leaves
-- cost     O(runs)

local STALE_US = 60000000
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local places = redis.call('HGETALL', pace)
local free_us = now_us
for at = 1, #places, 2 do
  local next_us = tonumber(places[at + 1])
  -- Nobody says goodbye: what a killed run left is dropped by the next one.
  if next_us + STALE_US < now_us then redis.call('HDEL', pace, places[at]) end
  -- Time that was not used is not saved up, or a rate would be exceeded later.
  if places[at] == run and next_us > now_us then free_us = next_us end
end
redis.call('HSET', pace, run, string.format('%.0f', free_us + takes_us))
return free_us - now_us
