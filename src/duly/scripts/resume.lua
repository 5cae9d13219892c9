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
--          version   of the change, '' on the first shard, which gives it out
--          tells     '1' on the shard that writes the event, the last one: one call makes one event
-- returns  its version, or 'unknown' where the call may have been made before
-- cost     O(1)

local now = clock(now_ms)
local newer, answer = next_version(topic .. ':pause_version', version, nonce, now, sent_ms)
if not newer then return answer end
local was_paused = redis.call('HEXISTS', topics, topic .. ':paused') == 1
if was_paused then
  if tells == '1' then event('resumed', topic .. '/', NO_RECORD, nil, now) end
  commit(now, nonce)
  redis.call('HDEL', topics, topic .. ':paused')
  redis.call('HSET', topics, topic .. ':resumed', now)
end
redis.call('HSET', topics, topic .. ':pause_version', newer)
if was_paused then
  name_topic(topic, 1)
  local ready = tonumber(redis.call('HGET', topics, topic .. ':ready')) or 0
  if ready > 0 then woken[topic] = ready end
  wake_topics(now)
  call_deliverers(topic)
end
return answer
