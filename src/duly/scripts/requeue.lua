#!lua
-- requeue: run ended jobs again, as a new revision with its counters at 0.
--
-- moves    succeeded, dead, cancelled -> ready
-- uses     clock records replies changes endings
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          events    stream  what happened
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  seven keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, request
-- returns  for each job '<word> <revision> <due_ms> <state>', word one of ok conflict gone
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 2 do members[#members + 1] = ARGV[at] end
local revision = take_numbers(2 * #members)

local function answer_of(word, job)
  return string.format('%s %d %d %d', word, job.revision, job[DUE] or 0, job.state)
end

for at, job in ipairs(fetch(members)) do
  local request = ARGV[first + 2 * at - 1]
  if not job then
    words[at] = 'gone 0 0 0'
  elseif job.request == request then
    words[at] = answer_of('ok', job)
  elseif job.state < SUCCEEDED then
    words[at] = answer_of('conflict', job)
  elseif has_mark(job, BODY_DROPPED) then
    -- A stub: what it was to run is forgotten.
    words[at] = 'gone 0 0 0'
  else
    local topic = topic_of(job.member)
    revive(job, topic)
    -- Who asks for it again does not mean the old deadline.
    if job.options ~= '' then job.options = NOBODY .. string.sub(job.options, 9) end
    if job.options == NO_OPTIONS then job.options = '' end
    job.revision, job.request, job.state = revision + at - 1, request, READY
    job[DUE], job[ATTEMPTS], job[CRASHES], job[ENTRY] = now, 0, 0, revision + #members + at - 1
    job[TOKEN], job[NONCE], job[VERB], job[MARKS] = 0, NOBODY, 0, bit.band(job[MARKS], AWAITED + REPLY)
    job[STARTED], job[ENDED], job[LATE], job[WORKER] = 0, 0, UNKNOWN, NOBODY
    line_up(job.member, topic, lane_of(job), job[ENTRY])
    count(topic, READY, 1)
    put('requeued', job)
    words[at] = answer_of('ok', job)
  end
end
commit(now, nonce)
wake_topics()
return words
