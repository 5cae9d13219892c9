#!lua flags=allow-oom
-- cancel: end jobs that have not ended; a running one is told to stop and its token is void.
--
-- moves    scheduled, ready, running -> cancelled
-- uses     clock records topics events lanes ending
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          due       zset    member -> due_ms
--          leases    zset    member -> lease end
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          events    stream  what happened
--          stop      channel tells workers to stop a run
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          keep_ms   how long cancelled jobs are kept
--          reason    one word, e.g. cancelled or purged
--          topic_count  how many topics follow
--          topic...  their names; then the members, all distinct
-- returns  for each job '<state it is in now> <revision>', or 'gone'
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local members, words, mine = {}, {}, {}
for at = topic_at + named, #ARGV do members[#members + 1] = ARGV[at] end

for at, job in ipairs(fetch(members)) do
  if not job then
    words[at] = 'gone'
  elseif job.state > RUNNING then
    words[at] = job.state .. ' ' .. job.revision
  else
    words[at] = CANCELLED .. ' ' .. job.revision
    job.due = job.due or tonumber(redis.call('ZSCORE', due, job.member)) or now
    mine[#mine + 1] = job
    event('cancelled', job, job.attempts, job.due, '', '', job.worker, reason)
  end
end
if #mine == 0 then return words end
emit(now, nonce)

for _, job in ipairs(mine) do
  local topic = topic_of(job.member)
  if job.state == SCHEDULED then
    redis.call('ZREM', due, job.member)
  else
    drop_entry(topic, lane_of(job), job.entry)
    if job.state == RUNNING then
      redis.call('ZREM', leases, job.member)
      redis.call('PUBLISH', stop, job.member .. ' ' .. job.token)
    end
  end
  finish(job, topic, CANCELLED, now, tonumber(keep_ms), '{"type":"' .. reason .. '"}')
end
write_records()
write_entries()
write_endings()
write_counts()
return words
