#!lua
-- requeue: run ended jobs again, as a new revision with its counters at 0.
--
-- moves    succeeded, dead, cancelled -> ready
-- uses     clock records replies changes endings requests
-- KEYS     (queue)           everything that a transition may touch
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry; a call that is repeated has the same
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          seen      the highest number of the shard that its sender had seen by then
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, request,
--                    revision that must stand ('' for any)
-- returns  for each job '<word> <revision> <due_ms> <state>', word one of ok conflict gone unknown
-- cost     O(jobs * log n)

local now = clock(now_ms)
local answer = recall(nonce)
if answer then return answer end
local late = is_forgotten(sent_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 3 do members[#members + 1] = ARGV[at] end
local revision = take_numbers(2 * #members)

local function answer_of(word, job)
  return string.format('%s %d %d %d', word, job.revision, job[DUE] or 0, job.state)
end

for at, job in ipairs(fetch(members)) do
  local request, must_stand = ARGV[first + 3 * at - 2], ARGV[first + 3 * at - 1]
  if not job then
    words[at] = 'gone 0 0 0'
  elseif job.request == request then
    words[at] = answer_of('ok', job)
  elseif late and job.revision > tonumber(seen) then
    words[at] = 'unknown 0 0 0'
  elseif job.state < SUCCEEDED or (must_stand ~= '' and job.revision ~= tonumber(must_stand)) then
    words[at] = answer_of('conflict', job)
  elseif has_mark(job, BODY_DROPPED) then
    -- A stub: what it was to run is forgotten.
    words[at] = 'gone 0 0 0'
  else
    local topic = topic_of(job.member)
    revive(job, topic)
    -- Who asks for it again does not mean the old deadline.
    if job.options ~= '' then job.options = NOBODY .. string.sub(job.options, 9) end
    ages.revise(job, revision + at - 1, request)
    ages.set_part(job, FIRST_DUE)
    job.state = READY
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
wake_topics(now)
return late and words or remember(nonce, words, now, sent_ms)
