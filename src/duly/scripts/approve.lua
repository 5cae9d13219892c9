#!lua flags=allow-oom
-- approve: let jobs of the shard be handed out, because its record says that this server counts.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
-- ARGV     now_ms    '' means the server's clock
--          record_id   which record
--          generation  of the queue: which life of its server, see `duly.record.generations`
--          life        the life of the server that was compared, '' for any; see life.lua
--          until_ms    when the approval ends, by the server's own clock; '' for never
-- returns  'ok', or 'changed' where that life is over
-- cost     O(1)

clock(now_ms)
if life ~= '' and life ~= server.life() then return 'changed' end
local known = redis.call('HMGET', meta, 'record', 'generation')
-- An approval is renewed every second: what is the same need not go to the disk and to replicas.
if known[1] ~= record_id or known[2] ~= generation then
  redis.call('HSET', meta, 'record', record_id, 'generation', generation)
end
server.approvals[meta] = {
  sequence = sequence, epoch = shard[EPOCH], replication = server.replication(),
  until_ms = until_ms == '' and math.huge or tonumber(until_ms),
}
return 'ok'
