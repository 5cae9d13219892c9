#!lua
-- requeue: run ended jobs again, as a new revision with its counters at 0.
--
-- moves    succeeded, dead, cancelled -> ready
-- uses     clock records topics events lanes ending
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
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
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
local members, words, mine = {}, {}, {}
for at = first, #ARGV, 2 do members[#members + 1] = ARGV[at] end

local function answer_of(word, job)
  return word .. ' ' .. job.revision .. ' ' .. (job.due or 0) .. ' ' .. job.state
end

for at, job in ipairs(fetch(members)) do
  local request = ARGV[first + 2 * at - 1]
  if not job or has_mark(job, BODY_DROPPED) and job.request ~= request then
    words[at] = 'gone 0 0 0'
  elseif job.request == request then
    words[at] = answer_of('ok', job)
  elseif job.state < SUCCEEDED then
    words[at] = answer_of('conflict', job)
  else
    mine[#mine + 1] = {job = job, at = at, request = request}
  end
end
if #mine == 0 then return words end

local revision = take_numbers(2 * #mine)
for at, one in ipairs(mine) do
  one.job.revision = revision + at - 1
  event('requeued', one.job, 0, now)
end
emit(now, nonce)

for at, one in ipairs(mine) do
  local job = one.job
  job.topic = topic_of(job.member)
  revive(job, job.topic)
  -- Who asks for it again does not mean the old deadline.
  if job.expires > 0 then job.options = string.rep('\0', 8) .. string.sub(job.options, 9) end
  job.request, job.due, job.attempts, job.crashes = one.request, now, 0, 0
  job.token, job.nonce, job.verb, job.started, job.ended = 0, NO_NONCE, 0, 0, 0
  job.late, job.worker = UNKNOWN, ''
  line_up(job, job.topic, revision + #mine + at - 1)
  count(job.topic, READY, 1)
  put(job)
  words[one.at] = answer_of('ok', job)
end
write_records()
write_endings()
write_counts()
wake_topics()
return words
