#!lua flags=allow-oom
-- recover: take back jobs whose lease ran out without an answer.
--
-- moves    running, lease over -> scheduled a little later as a suspect, or dead after too many crashes;
--          -> ready when the crash is not to be counted
-- uses     clock records replies changes endings
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
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
--          timer     stream  the earliest due time changed
--          stop      channel tells workers to stop a run
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  seven keys for each topic, see lib/changes.lua
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

local back, buried = 0, 0
local entry = #members > 0 and take_numbers(#members)
for at, job in ipairs(fetch(members)) do
  let_go(members[at])
  if job and job.state == RUNNING then
    local topic = topic_of(job.member)
    stops[#stops + 1] = job.member .. ' ' .. job[TOKEN]
    job[VERB] = VERBS.recover
    local _, _, _, own_most = wishes(job)
    local most = own_most > 0 and own_most or tonumber(max_crashes)
    if counted == '1' then job[CRASHES] = math.min(job[CRASHES] + 1, 65535) end
    if counted == '1' and job[CRASHES] >= most then
      buried = buried + 1
      finish('buried', job, topic, DEAD, now, tonumber(keep_ms), '{"type":"crashed","message":"the worker was lost '
        .. job[CRASHES] .. ' times while it ran this job"}', 'crashed')
    else
      back = back + 1
      count(topic, RUNNING, -1)
      if counted == '1' then
        -- Suspects come back later each time and run one at a time, so that a poison job takes nobody with it.
        job.state, job[ENTRY], job[DUE] = SCHEDULED, 0, now_ceil + 1000 * 2 ^ math.min(job[CRASHES] - 1, 16)
        schedule(job.member, job[DUE])
      else
        job.state, job[ENTRY] = READY, entry + at - 1
        line_up(job.member, topic, lane_of(job), job[ENTRY])
      end
      count(topic, job.state, 1)
      put('recovered', job, counted == '1' and 'crashed' or 'clock')
    end
  end
end
commit(now, nonce)
wake_topics()
return {now, back, buried, first_score(leases), names_of(unnamed)}
