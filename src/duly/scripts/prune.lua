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

local now = clock(now_ms)
local totals = redis.call('HMGET', meta, 'done_bytes', 'dead_bytes', 'recorded_ms')
local gone, more = {}, '0'
-- With a record: what ended from here on may not be in its row yet, and only this shard knows how it ended.
local unrecorded_ms = tonumber(totals[3]) or math.huge

local function collect(index, bytes, max_bytes, removed)
  local found = redis.call('ZRANGE', index, 0, limit - 1, 'WITHSCORES')
  local members = {}
  for at = 1, #found, 2 do members[#members + 1] = found[at] end
  for at, job in ipairs(fetch(members)) do
    if tonumber(found[2 * at]) > now and bytes <= max_bytes then return end
    local held = job and job.state > RUNNING and job[ENDED] >= unrecorded_ms
    if not held then removed[#removed + 1] = members[at] end
    if job and job.state > RUNNING and not held then
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
  if #removed > 0 and #members == tonumber(limit) then more = '1' end
end

collect(done, tonumber(totals[1]) or 0, tonumber(max_done_bytes), undone)
collect(dead, tonumber(totals[2]) or 0, tonumber(max_dead_bytes), undead)
commit(now, nonce)
if #gone > 0 then redis.call('HDEL', jobs, unpack(gone)) end
if forget_replies(now, tonumber(limit)) == tonumber(limit) then more = '1' end
return {#gone, more}
