#!lua flags=allow-oom
-- pause: let no more jobs of a topic be claimed; promotion goes on and running jobs finish.
--
-- moves    nothing
-- uses     clock records replies changes requests
-- KEYS     (queue)           everything that a transition may touch
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
if redis.call('HEXISTS', topics, topic .. ':paused') == 1 then return 'ok' end
event('paused', topic .. '/', NO_RECORD, nil, now)
commit(now, nonce)
redis.call('HSET', topics, topic .. ':paused', now)
return 'ok'
