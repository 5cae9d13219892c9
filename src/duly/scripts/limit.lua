#!lua flags=allow-oom
-- limit: refuse jobs of a topic beyond so many that wait on this shard, or lift that.
--
-- moves    nothing
-- uses     clock requests
-- KEYS     (queue)           everything that a transition may touch
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the call; one that is repeated has the same
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          topic     its name
--          version   of the change, '' on the first shard, which gives it out
--          share     how many may wait here, '' for any number
--          asked     how many may wait on all shards together
-- returns  its version, or 'unknown' where the call may have been made before
-- cost     O(1)

local now = clock(now_ms)
local newer, answer = next_version(topic .. ':limit_version', version, nonce, now, sent_ms)
if not newer then return answer end
if share == '' then
  redis.call('HDEL', topics, topic .. ':limit', topic .. ':asked')
else
  -- Scripts that add jobs look here, and at no topic.
  redis.call('HSET', meta, 'limited', '1')
  redis.call('HSET', topics, topic .. ':limit', share, topic .. ':asked', asked)
end
redis.call('HSET', topics, topic .. ':limit_version', newer)
return answer
