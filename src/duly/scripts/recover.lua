#!lua flags=allow-oom
-- recover: take back jobs whose lease ran out without an answer.
--
-- moves    running, lease over -> ready, as a suspect or isolated if a crash is counted; or dead after too many crashes
-- uses     clock records replies changes endings
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          limit     at most this many in one call
--          max_crashes  for jobs without a number of their own
--          counted   '1' if a crash is counted, '0' after a jump of the clock
--          keep_ms   how long dead jobs are kept
--          topic...  topics whose streams are in KEYS
-- returns  {now_ms, recovered, buried, next_lease_ms, topics with leases over but not named}
-- cost     O(limit * log n)

local now = clock(now_ms)
for at = topic_at, #ARGV do name_topic(ARGV[at], at - topic_at + 1) end

local members, unnamed = {}, {}
for _, member in ipairs(redis.call('ZRANGE', leases, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
  local topic = topic_of(member)
  if first_key[topic] then members[#members + 1] = member else unnamed[topic] = true end
end

local back, buried, suspects = 0, 0, 0
local entry = #members > 0 and take_numbers(#members)
for at, job in ipairs(fetch(members)) do
  let_go(members[at])
  if job and job.state == RUNNING then
    local topic = topic_of(job.member)
    stops[#stops + 1] = string.format('%s %d', job.member, job[TOKEN])
    job[VERB] = VERBS.recover
    local _, _, _, own_most = wishes(job)
    local most = own_most > 0 and own_most or tonumber(max_crashes)
    if counted == '1' then job[CRASHES] = math.min(job[CRASHES] + 1, 65535) end
    -- Only a job that ran isolated is known to be at fault: none is buried for its neighbours.
    if counted == '1' and job[CRASHES] >= most and job[CRASHES] > 2 then
      buried = buried + 1
      finish('buried', job, topic, DEAD, now, tonumber(keep_ms), '{"type":"crashed","message":"the worker was lost '
        .. job[CRASHES] .. ' times while it ran this job"}', 'crashed')
    else
      back = back + 1
      count(topic, RUNNING, -1)
      if counted == '1' then
        -- One crash beside many others says little: all start again at once, in halves on different workers.
        ages.keep_first_due(job)
        suspects, job[DUE] = suspects + 1, now
        job[MARKS] = job[MARKS] - job[MARKS] % (2 * HALF) + job[MARKS] % HALF + suspects % 2 * HALF
      end
      job.state, job[ENTRY] = READY, entry + at - 1
      line_up(job.member, topic, lane_of(job), job[ENTRY])
      count(topic, READY, 1)
      put('recovered', job, counted == '1' and 'crashed' or 'clock')
    end
  end
end
commit(now, nonce)
wake_topics(now)
return {now, back, buried, first_score(leases), names_of(unnamed)}
