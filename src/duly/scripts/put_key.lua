#!lua flags=allow-oom
-- put_key: keep an API key; one that was revoked since does not come back by an old call.
--
-- moves    nothing
-- uses     clock requests
-- KEYS     (queue)           everything that a transition may touch
--          api_keys  hash    api key -> what it may do, and the hash of its secret
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the call; one that is repeated has the same
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          id        of the key
--          about     what it may do, and the hash of its secret
-- returns  'ok', or 'unknown' where the call may have been made before
-- cost     O(1)

local now = clock(now_ms)
if recall(nonce) then return 'ok' end
-- It may have been made and revoked since.
if is_forgotten(sent_ms) then return 'unknown' end
remember(nonce, 'ok', now, sent_ms)
redis.call('HSET', api_keys, id, about)
return 'ok'
