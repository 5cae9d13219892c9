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
--          version   of the change, '' on the first shard, which gives it out
--          tells     '1' on the shard that writes the event, the last one: one call makes one event
-- returns  its version, or 'unknown' where the call may have been made before
-- cost     O(1)

local now = clock(now_ms)
local newer, answer = next_version(topic .. ':pause_version', version, nonce, now, sent_ms)
if not newer then return answer end
if redis.call('HEXISTS', topics, topic .. ':paused') == 0 then
  if tells == '1' then event('paused', topic .. '/', NO_RECORD, nil, now) end
  commit(now, nonce)
  redis.call('HSET', topics, topic .. ':paused', now)
end
redis.call('HSET', topics, topic .. ':pause_version', newer)
return answer
