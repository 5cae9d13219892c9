#!lua flags=allow-oom
-- approve: say that the shard agrees with its record, so that its jobs may be claimed.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
-- ARGV     now_ms    '' means the server's clock
--          record_id   which record
--          generation  how often the record has found the queue to be behind it
--          server_id   what was compared: run id and replication id of the server
--          life        the life of the server that was compared, '' for any; see life.lua
-- returns  'ok', or 'changed' where that is over
-- cost     O(1)

clock(now_ms)
if life ~= '' and life ~= (lives[meta] or '') .. shard[EPOCH] then return 'changed' end
redis.call('HSET', meta, 'record', record_id, 'generation', generation, 'server', server_id)
sound[meta] = sequence
return 'ok'
