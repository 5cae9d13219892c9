#!lua
-- reschedule: give jobs that have not started another due time, as a new revision.
--
-- moves    scheduled, ready -> scheduled
-- uses     clock records replies changes horizon requests
-- KEYS     (queue)           everything that a transition may touch
--          overrides hash    member -> what became of a far-future job while it waits in its table
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry; a call that is repeated has the same
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          seen      the highest number of the shard that its sender had seen by then
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, request,
--                    when ('+ms' from now or absolute), revision that must stand ('' for any)
-- returns  for each job '<word> <revision> <due_ms> <state>', word one of ok conflict gone unknown, or
--          accepted where its table may have it
-- cost     O(jobs * log n)

local now_floor, now_ceil = clock(now_ms)
local answer = recall(nonce)
if answer then return answer end
local late = is_forgotten(sent_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words, put_off = {}, {}, {}
for at = first, #ARGV, 4 do members[#members + 1] = ARGV[at] end
local revision = take_numbers(#members)

local function answer_of(word, job)
  local due_ms = job[DUE] or due_score(job.member) or 0
  return string.format('%s %d %d %d', word, job.revision, due_ms, job.state)
end

local function time_of(when)
  return string.byte(when) == 43 and now_ceil + when or tonumber(when)
end

-- Not here: where there is a table of far-future jobs, it may have it.  Who has seen a revision has seen it here.
local function unknown(member, arg)
  local standing = ARGV[arg + 3] == '' and cold(member)
  if not standing then return 'gone 0 0 0' end
  if standing == 'cancelled' then return string.format('conflict 0 0 %d', CANCELLED) end
  local due_ms = math.max(time_of(ARGV[arg + 2]), now_floor)
  put_off[#put_off + 1] = member
  put_off[#put_off + 1] = string.format('due %d', due_ms)
  return string.format('accepted 0 %d %d', due_ms, SCHEDULED)
end

for at, job in ipairs(fetch(members)) do
  local arg = first + 4 * (at - 1)
  if not job then
    words[at] = unknown(members[at], arg)
  elseif job.request == ARGV[arg + 1] then
    words[at] = answer_of('ok', job)
  elseif late and job.revision > tonumber(seen) then
    words[at] = 'unknown 0 0 0'
  elseif job.state > READY or (ARGV[arg + 3] ~= '' and job.revision ~= tonumber(ARGV[arg + 3])) then
    words[at] = answer_of('conflict', job)
  else
    local due_ms = time_of(ARGV[arg + 2])
    local topic = topic_of(job.member)
    if job.state == READY then
      drop_entry(topic, lane_of(job), job[ENTRY])
      count(topic, READY, -1)
      count(topic, SCHEDULED, 1)
    end
    ages.revise(job, revision + at - 1, ARGV[arg + 1])
    ages.set_part(job, FIRST_DUE)
    job.state, job[ENTRY] = SCHEDULED, 0
    job[DUE] = math.max(due_ms, now_floor)
    move_due(job.member, topic, job[DUE])
    put('rescheduled', job)
    words[at] = answer_of('ok', job)
  end
end
commit(now_floor, nonce)
if #put_off > 0 then redis.call('HSET', overrides, unpack(put_off)) end
return late and #put_off == 0 and words or remember(nonce, words, now_floor, sent_ms)
