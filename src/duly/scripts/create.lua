#!lua flags=allow-oom
-- create: make the shard of a namespace, or say what it is made of.
--
-- moves    nothing
-- KEYS     meta      hash    the shard's numbers
-- ARGV     layout    version of the keys and records
--          shards    of the namespace
--          clock_kind  server or test
--          epoch     new, used if the shard is made now
--          max_event_rows   bound of the event stream
--          max_event_bytes  bound of the event stream
-- returns  {layout, shards, clock, epoch}
-- cost     O(1)

if redis.call('HEXISTS', meta, 'layout') == 0 then
  -- Numbers follow the time, so that revisions and tokens grow also across a server that was emptied.
  local time = redis.call('TIME')
  redis.call('HSET', meta, 'layout', layout, 'shards', shards, 'clock', clock_kind, 'epoch', epoch,
    'requests_since', clock_kind == 'test' and 0 or time[1] * 1000, 'sequence', '0',
    'max_event_rows', max_event_rows, 'max_event_bytes', max_event_bytes,
    -- A value of more than 64 bytes makes the server keep these fields in a table: in the list that a small
    -- hash is otherwise, each look-up walks, and every call of every script looks up a dozen.
    'spread', string.rep('-', 65))
end
local was = redis.call('HMGET', meta, 'layout', 'shards', 'clock', 'epoch')
-- The bounds follow the settings of whoever came last, so that they can be changed.
if was[1] == layout and was[2] == shards then
  redis.call('HSET', meta, 'max_event_rows', max_event_rows, 'max_event_bytes', max_event_bytes)
end
return was
