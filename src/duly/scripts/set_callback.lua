#!lua flags=allow-oom
-- set_callback: have jobs of a topic delivered to a URL, those that wait as well, or have workers run them again.
--
-- moves    nothing
-- uses     clock records replies changes requests
-- KEYS     (queue)           everything that a transition may touch
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the call; one that is repeated has the same
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          topic     its name
--          version   of the change, '' on the first shard, which gives it out
--          url       where to deliver, '' for nowhere
-- returns  its version, or 'unknown' where the call may have been made before
-- cost     O(1)

local now = clock(now_ms)
local newer, answer = next_version(topic .. ':callback_version', version, nonce, now, sent_ms)
if not newer then return answer end
if url == '' then
  redis.call('HDEL', topics, topic .. ':callback')
else
  redis.call('HSET', topics, topic .. ':callback', url)
end
redis.call('HSET', topics, topic .. ':callback_version', newer)
if url ~= '' then call_deliverers(topic) end
return answer
