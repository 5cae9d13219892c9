#!lua flags=allow-oom
-- recover: take back jobs whose lease ran out without an answer.
--
-- moves    running, lease over -> scheduled a little later as a suspect, or dead after too many crashes;
--          -> ready when the crash is not to be counted
-- uses     clock records topics events lanes schedule ending
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
--          timer     stream  the earliest due time changed
--          stop      channel tells workers to stop a run
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          limit     at most this many in one call
--          max_crashes  for jobs without a number of their own
--          counted   '1' if a crash is counted, '0' after a jump of the clock
--          keep_ms   how long dead jobs are kept
--          topic...  topics whose streams are in KEYS
-- returns  {now_ms, recovered, buried, next_lease_ms, topics with leases over but not named}
-- cost     O(limit * log n)

local now, now_ceil = clock(now_ms)
for at = topic_at, #ARGV do name_topic(ARGV[at], at - topic_at + 1) end

local members, unnamed = {}, {}
for _, member in ipairs(redis.call('ZRANGE', leases, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
  local topic = topic_of(member)
  if first_key[topic] then members[#members + 1] = member else unnamed[topic] = true end
end

local freed, back, buried = {}, {}, {}
for at, job in ipairs(fetch(members)) do
  freed[at] = members[at]
  if job and job.state == RUNNING then
    job.topic = topic_of(job.member)
    job.was_lane = lane_of(job)
    job.verb = VERBS.recover
    if counted == '1' then job.crashes = job.crashes + 1 end
    local most = job.max_crashes > 0 and job.max_crashes or tonumber(max_crashes)
    if counted == '1' and job.crashes >= most then
      buried[#buried + 1] = job
      event('buried', job, job.attempts + 1, job.due, '', now - job.started, job.worker, 'crashed')
    else
      back[#back + 1] = job
      event('recovered', job, job.attempts + 1, job.due, '', now - job.started, job.worker, counted == '1' and 'crashed' or 'clock')
    end
  end
end
emit(now, nonce)

if #back > 0 then
  local entry = take_numbers(#back)
  for at, job in ipairs(back) do
    drop_entry(job.topic, job.was_lane, job.entry)
    redis.call('PUBLISH', stop, job.member .. ' ' .. job.token)
    count(job.topic, RUNNING, -1)
    if counted == '1' then
      -- Suspects come back later each time and are run one at a time, so that a poison job takes nobody with it.
      job.state, job.entry, job.due = SCHEDULED, 0, now_ceil + 1000 * 2 ^ (job.crashes - 1)
      schedule(job, job.due)
    else
      line_up(job, job.topic, entry + at - 1)
    end
    count(job.topic, job.state, 1)
    put(job)
  end
end
for _, job in ipairs(buried) do
  drop_entry(job.topic, job.was_lane, job.entry)
  redis.call('PUBLISH', stop, job.member .. ' ' .. job.token)
  finish(job, job.topic, DEAD, now, tonumber(keep_ms), '{"type":"crashed","message":"the worker was lost '
    .. job.crashes .. ' times while it ran this job"}')
end
write_records()
write_schedule()
if #freed > 0 then redis.call('ZREM', leases, unpack(freed)) end
write_entries()
write_endings()
write_counts()
wake_topics()

local head = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
local names = {}
for name in pairs(unnamed) do names[#names + 1] = name end
return {now, #back, #buried, head[2] or '', names}
