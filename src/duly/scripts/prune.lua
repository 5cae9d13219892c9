#!lua flags=allow-oom
-- prune: forget ended jobs, and replies, that are past their time or beyond the bytes that may be kept.
--
-- moves    succeeded, dead, cancelled -> (gone)
-- uses     clock records replies changes endings
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          limit     at most this many of each index in one call
--          max_done_bytes  how much succeeded and cancelled jobs may weigh
--          max_dead_bytes  how much dead jobs may weigh
-- returns  {pruned, '1' if there is more to do}
-- cost     O(limit * log n)

-- From a minute to centuries, each four times as far.
local STEPS_AHEAD = 14

local now = clock(now_ms)
local totals = redis.call('HMGET', meta, 'done_bytes', 'dead_bytes', 'recorded_ms')
local gone, more = {}, '0'
-- With a record: what ended from here on may not be in its row yet, and only this shard knows how it ended.
local unrecorded_ms = tonumber(totals[3]) or math.huge

-- Forget those of a page whose time is over, and others as long as there are too many bytes, but with `spares_young` none that
-- ended within the last minute.  The answer is how many bytes are left.
local function forget_page(members, untils, bytes, max_bytes, removed, spares_young)
  for at, job in ipairs(fetch(members)) do
    local is_over = untils[at] <= now
    if not is_over and bytes <= max_bytes then break end
    local ended = job and job.state > RUNNING and job[ENDED]
    local stays = ended and (ended >= unrecorded_ms or (spares_young and not is_over and ended + STUB_MS > now))
    if not stays then removed[#removed + 1] = members[at] end
    if ended and not stays then
      local record = write(job)
      local weight = weigh(job, record, redis.call('HGET', outcomes, job.member) or '')
      bytes = bytes - weight
      weigh_in(job.state, -weight)
      count(topic_of(job.member), job.state, -1)
      gone[#gone + 1] = job.member
      dropped_outcomes[#dropped_outcomes + 1] = job.member
      if job.apart then dropped_bodies[#dropped_bodies + 1] = job.member end
      event('pruned', job.member, record)
    end
  end
  return bytes
end

local function page_from(index, from_ms)
  local found = redis.call('ZRANGE', index, from_ms, '+inf', 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  local members, untils = {}, {}
  for at = 1, #found, 2 do
    members[#members + 1], untils[#untils + 1] = found[at], tonumber(found[at + 1])
  end
  return members, untils
end

-- Beyond the bytes those go first that would go first anyway.  What ended within the last minute goes only if that is not
-- enough: somebody may be about to ask for it, and jobs that are kept for a short time would never outlast a full store.
local function collect(index, bytes, max_bytes, removed)
  local members, untils = page_from(index, '-inf')
  bytes = forget_page(members, untils, bytes, max_bytes, removed, true)
  local size, last_until, ahead_ms = #members, untils[#untils], STUB_MS
  -- While all of a page are young: older ones are kept for longer, so they are further ahead.
  for _ = 1, STEPS_AHEAD do
    if #removed > 0 or bytes <= max_bytes or size < tonumber(limit) then break end
    if last_until <= now + ahead_ms then
      local further, further_untils = page_from(index, string.format('(%d', now + ahead_ms))
      bytes = forget_page(further, further_untils, bytes, max_bytes, removed, true)
      size, last_until = #further, further_untils[#further]
    end
    ahead_ms = 4 * ahead_ms
  end
  if #removed == 0 and bytes > max_bytes then
    bytes = forget_page(members, untils, bytes, max_bytes, removed, false)
  end
  local is_page_full = #members == tonumber(limit)
  if #removed > 0 and is_page_full and (bytes > max_bytes or untils[#untils] <= now) then more = '1' end
end

collect(done, tonumber(totals[1]) or 0, tonumber(max_done_bytes), undone)
collect(dead, tonumber(totals[2]) or 0, tonumber(max_dead_bytes), undead)
commit(now, nonce)
if #gone > 0 then redis.call('HDEL', jobs, unpack(gone)) end
if forget_replies(now, tonumber(limit)) == tonumber(limit) then more = '1' end
return {#gone, more}
