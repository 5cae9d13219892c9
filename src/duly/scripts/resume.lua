#!lua flags=allow-oom
-- resume: let jobs of a paused topic be claimed again; the time it was paused is not lateness.
--
-- moves    nothing
-- uses     clock records replies changes requests
-- KEYS     (queue)           everything that a transition may touch
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry; a call that is repeated has the same
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          topic     its name
-- returns  'ok', or 'unknown' where the call may have been made before
-- cost     O(1)

local now = clock(now_ms)
if recall(nonce) then return 'ok' end
-- Whatever it was to change may have been changed by others since.
if is_forgotten(sent_ms) then return 'unknown' end
remember(nonce, 'ok', now)
if redis.call('HEXISTS', topics, topic .. ':paused') == 0 then return 'ok' end
event('resumed', topic .. '/', NO_RECORD, nil, now)
commit(now, nonce)
redis.call('HDEL', topics, topic .. ':paused')
redis.call('HSET', topics, topic .. ':resumed', now)
name_topic(topic, 1)
local ready = tonumber(redis.call('HGET', topics, topic .. ':ready')) or 0
if ready > 0 then woken[topic] = ready end
wake_topics(now)
call_deliverers(topic)
return 'ok'
