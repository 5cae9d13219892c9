-- requests: calls that change what others may have changed since, remembered with their answers.
--
-- A call whose reply is lost is sent again, and its first sending may arrive even later.  It must not undo what others did
-- in between, so a repeated call gets its first answer and changes nothing.  Two generations are kept: a new one begins
-- after REQUEST_MS, or as soon as one holds REQUESTS_KEPT calls or REQUEST_BYTES, and the one before it is complete.
--
-- Whether a call was forgotten or is new cannot be told by its nonce.  So each carries when it was first sent.  One that is
-- older than what is remembered changes a job only if nobody else has since: its sender says which number of the shard it
-- had seen by then, and a job that was changed later has a higher revision.

local REQUEST_MS, REQUESTS_KEPT, REQUEST_BYTES = 300000, 5000, 4194304

-- The answer of a call that was made before.
local function recall(nonce)
  local answer = redis.call('HGET', key.requests, nonce) or redis.call('HGET', key.old_requests, nonce)
  return answer and cmsgpack.unpack(answer)
end

-- Keep the answer of a call, and give it back.
local function remember(nonce, answer, now_ms)
  local packed = cmsgpack.pack(answer)
  local about = redis.call('HMGET', key.meta, 'requests_from', 'requests_bytes')
  local from_ms, bytes = tonumber(about[1]), (tonumber(about[2]) or 0) + #packed
  if not from_ms or now_ms - from_ms >= REQUEST_MS or bytes > REQUEST_BYTES
    or redis.call('HLEN', key.requests) >= REQUESTS_KEPT then
    if from_ms then redis.call('HSET', key.meta, 'requests_since', from_ms) end
    redis.call('HSET', key.meta, 'requests_from', now_ms)
    if redis.call('EXISTS', key.requests) == 1 then redis.call('RENAME', key.requests, key.old_requests) end
    bytes = #packed
  end
  redis.call('HSET', key.requests, nonce, packed)
  redis.call('HSET', key.meta, 'requests_bytes', bytes)
  return answer
end

-- Whether a call that was first sent then may have been made before, and be forgotten.
local function is_forgotten(sent_ms)
  return tonumber(sent_ms) < (tonumber(redis.call('HGET', key.meta, 'requests_since')) or 0)
end
