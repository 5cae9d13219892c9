#!lua
-- probe: write an entry, read it and remove it, to see whether jobs could get through this shard.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
--          probe     stream  what a probe writes, and removes in the same call
-- ARGV     now_ms    '' means the server's clock
--          generation  of the record that the caller knows; '' for none
-- returns  how many entries were there
-- cost     O(1)

-- Without the flag allow-oom: a server that takes no new job takes no probe.
local now = clock(now_ms)
must_be_sound(generation)
redis.call('XADD', probe, '*', 'at', now)
local found = redis.call('XLEN', probe)
redis.call('DEL', probe)
return found
