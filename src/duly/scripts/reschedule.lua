#!lua
-- reschedule: give jobs that have not started another due time, as a new revision.
--
-- moves    scheduled, ready -> scheduled
-- uses     clock records replies changes
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          due       zset    member -> due_ms
--          events    stream  what happened
--          timer     stream  the earliest due time changed
--          lanes...  stream  seven keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, request,
--                    when ('+ms' from now or absolute), revision that must stand ('' for any)
-- returns  for each job '<word> <revision> <due_ms> <state>', word one of ok conflict gone
-- cost     O(jobs * log n)

local now_floor, now_ceil = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 4 do members[#members + 1] = ARGV[at] end
local revision = take_numbers(#members)

local function answer_of(word, job)
  local due_ms = job[DUE] or tonumber(redis.call('ZSCORE', due, job.member)) or 0
  return string.format('%s %d %d %d', word, job.revision, due_ms, job.state)
end

for at, job in ipairs(fetch(members)) do
  local arg = first + 4 * (at - 1)
  if not job then
    words[at] = 'gone 0 0 0'
  elseif job.request == ARGV[arg + 1] then
    words[at] = answer_of('ok', job)
  elseif job.state > READY or (ARGV[arg + 3] ~= '' and job.revision ~= tonumber(ARGV[arg + 3])) then
    words[at] = answer_of('conflict', job)
  else
    local when = ARGV[arg + 2]
    local due_ms = tonumber(when)
    if string.byte(when) == 43 then due_ms = now_ceil + due_ms end
    local topic = topic_of(job.member)
    if job.state == READY then
      drop_entry(topic, lane_of(job), job[ENTRY])
      count(topic, READY, -1)
      count(topic, SCHEDULED, 1)
    end
    job.revision, job.request, job.state, job[ENTRY] = revision + at - 1, ARGV[arg + 1], SCHEDULED, 0
    job[DUE] = math.max(due_ms, now_floor)
    schedule(job.member, job[DUE])
    put('rescheduled', job)
    words[at] = answer_of('ok', job)
  end
end
commit(now_floor, nonce)
return words
