#!lua flags=allow-oom
-- resume: let jobs of a paused topic be claimed again; the time it was paused is not lateness.
--
-- moves    nothing
-- uses     clock records replies changes
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters and pauses of topics
--          events    stream  what happened
--          lanes...  stream  seven keys of the topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic     its name
-- returns  'ok'
-- cost     O(1)

local now = clock(now_ms)
if redis.call('HEXISTS', topics, topic .. ':paused') == 0 then return 'ok' end
event('resumed', topic .. '/', NO_RECORD, nil, now)
commit(now, nonce)
redis.call('HDEL', topics, topic .. ':paused')
redis.call('HSET', topics, topic .. ':resumed', now)
name_topic(topic, 1)
wake(topic, tonumber(redis.call('HGET', topics, topic .. ':ready')) or 0)
call_deliverers(topic)
return 'ok'
