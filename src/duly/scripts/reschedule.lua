#!lua
-- reschedule: give jobs that have not started another due time, as a new revision.
--
-- moves    scheduled, ready -> scheduled
-- uses     clock records topics events lanes schedule
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          due       zset    member -> due_ms
--          events    stream  what happened
--          timer     stream  the earliest due time changed
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
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
local members, words, mine = {}, {}, {}
for at = first, #ARGV, 4 do members[#members + 1] = ARGV[at] end

local function answer_of(word, job)
  return word .. ' ' .. job.revision .. ' ' .. (job.due or redis.call('ZSCORE', due, job.member) or 0) .. ' ' .. job.state
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
    if string.sub(when, 1, 1) == '+' then due_ms = now_ceil + due_ms end
    mine[#mine + 1] = {job = job, due = math.max(due_ms, now_floor), at = at, request = ARGV[arg + 1]}
  end
end
if #mine == 0 then return words end

local revision = take_numbers(#mine)
for at, one in ipairs(mine) do
  one.job.revision = revision + at - 1
  event('rescheduled', one.job, one.job.attempts, one.due)
end
emit(now_floor, nonce)

for _, one in ipairs(mine) do
  local job = one.job
  local topic = topic_of(job.member)
  if job.state == READY then
    drop_entry(topic, lane_of(job), job.entry)
    count(topic, READY, -1)
    count(topic, SCHEDULED, 1)
  end
  job.request, job.state, job.entry, job.due = one.request, SCHEDULED, 0, one.due
  schedule(job, one.due)
  put(job)
  words[one.at] = answer_of('ok', job)
end
write_records()
write_schedule()
write_entries()
write_counts()
return words
