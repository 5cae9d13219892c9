-- requests: calls that change what others may have changed since, remembered with their answers.
--
-- A call whose reply is lost is sent again, and its first sending may arrive even later.  It must not undo what others did
-- in between, so a repeated call gets its first answer and changes nothing.  Two generations are kept: a new one begins
-- after REQUEST_MS, or as soon as one holds REQUESTS_KEPT calls or REQUEST_BYTES, and the one before it is complete.
--
-- Whether a call was forgotten or is new cannot be told by its nonce.  So each carries when it was first sent.  One that is
-- older than what is remembered changes a job only if nobody else has since: its sender says which number of the shard it
-- had seen by then, and a job that was changed later has a higher revision.  That alone tells its repeats, too, so it need
-- not be remembered.
--
-- Those times are compared with each other only, never with a clock: `requests_since` is later than the latest of all calls
-- that were forgotten.  A clock that was set back, here or by a failover, leaves it ahead of the time; whose call is refused
-- as older, asks for it, and counts on from there.

local REQUEST_MS, REQUESTS_KEPT, REQUEST_BYTES = 300000, 5000, 4194304

-- The answer of a call that was made before.
local function recall(nonce)
  local answer = redis.call('HGET', key.requests, nonce) or redis.call('HGET', key.old_requests, nonce)
  return answer and cmsgpack.unpack(answer)
end

-- Keep the answer of a call, and give it back.
local function remember(nonce, answer, now_ms, sent_ms)
  local packed = cmsgpack.pack(answer)
  local about = redis.call('HMGET', key.meta, 'requests_began', 'requests_bytes', 'requests_since', 'requests_from', 'requests_latest')
  local began_ms, bytes = tonumber(about[1]), (tonumber(about[2]) or 0) + #packed
  local since_ms, latest_ms = tonumber(about[3]) or 0, tonumber(about[5]) or 0
  if not began_ms or math.abs(now_ms - began_ms) >= REQUEST_MS or bytes > REQUEST_BYTES
    or redis.call('HLEN', key.requests) >= REQUESTS_KEPT then
    since_ms = math.max(since_ms, tonumber(about[4]) or 0)
    redis.call('HSET', key.meta, 'requests_began', now_ms, 'requests_since', since_ms,
      'requests_from', math.max(since_ms, latest_ms + 1))
    if redis.call('EXISTS', key.requests) == 1 then redis.call('RENAME', key.requests, key.old_requests) end
    bytes = #packed
  end
  redis.call('HSET', key.requests, nonce, packed)
  redis.call('HSET', key.meta, 'requests_bytes', bytes, 'requests_latest', math.max(latest_ms, tonumber(sent_ms)))
  return answer
end

-- Whether a call that was first sent then may have been made before, and be forgotten.
local function is_forgotten(sent_ms)
  return tonumber(sent_ms) < (tonumber(redis.call('HGET', key.meta, 'requests_since')) or 0)
end

-- What is said of a topic stands on every shard, so each change of it has a version.  The first shard gives it out, which puts
-- all changes in one order; the others are told it, and take a change only if it is later than the one that they have.
-- The version of this change, nil where there is nothing to do; then what to answer: the version, or why there is none.
local function next_version(field, version, nonce, now_ms, sent_ms)
  local had = tonumber(redis.call('HGET', key.topics, field)) or 0
  if version ~= '' then return tonumber(version) > had and version or nil, version end
  local answer = recall(nonce)
  if answer then return nil, answer end
  -- Whatever it was to change may have been changed by others since.
  if is_forgotten(sent_ms) then return nil, 'unknown' end
  -- Of the time, so that they go on from there where the first shard has lost its memory, and others have not.
  version = string.format('%d', math.max(shard.began, had + 1))
  return version, remember(nonce, version, now_ms, sent_ms)
end
