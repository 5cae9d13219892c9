#!lua flags=allow-oom
-- life: tell this life of the shard's server from its next, and what was approved of it.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
-- ARGV     now_ms    '' means the server's clock
-- returns  {life: run id, replication id and epoch; time by the clock of the namespace; time by the server's own;
--          when the approval ends, '' where none counts; record; generation}
-- cost     O(1)

local now = clock(now_ms)
local found = server.approval(meta)
local known = redis.call('HMGET', meta, 'record', 'generation')
local until_ms = found and string.format('%d', math.min(found.until_ms, 2 ^ 52)) or ''
return {server.life(), now, server.ms(), until_ms, known[1] or '', known[2] or ''}
