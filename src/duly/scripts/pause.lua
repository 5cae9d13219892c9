#!lua flags=allow-oom
-- pause: let no more jobs of a topic be claimed; promotion goes on and running jobs finish.
--
-- moves    nothing
-- uses     clock records replies changes
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters and pauses of topics
--          events    stream  what happened
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic     its name
-- returns  'ok'
-- cost     O(1)

local now = clock(now_ms)
if redis.call('HEXISTS', topics, topic .. ':paused') == 1 then return 'ok' end
event('paused', topic .. '/', NO_RECORD, nil, now)
commit(now, nonce)
redis.call('HSET', topics, topic .. ':paused', now)
return 'ok'
