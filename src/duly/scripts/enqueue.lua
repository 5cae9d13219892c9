#!lua
-- enqueue: accept jobs, each new, kept as it was, or in place of an older one with its id.
--
-- moves    (new) -> scheduled or ready; with replace also any state -> scheduled or ready
-- uses     clock records changes endings
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters, limits and pauses of topics
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
--          lanes...  stream  five keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, request,
--                    lane, when ('+ms' from now or absolute), on_conflict, options, body
-- returns  {now_ms, revision of the first created, for each job due_ms if it was created, its revisions following
--          each other, else '<word> <revision> <due_ms> <state>', word one of created kept replaced exists full}
-- cost     O(jobs * log n)

local now_floor, now_ceil = clock(now_ms)
local named = tonumber(topic_count)
local room = {}
for at = 1, named do
  local topic = ARGV[topic_at + at - 1]
  name_topic(topic, at)
  local was = redis.call('HMGET', topics, topic .. ':limit', topic .. ':scheduled', topic .. ':ready')
  room[topic] = was[1] and was[1] - (was[2] or 0) - (was[3] or 0) or math.huge
end

local first = topic_at + named
local only = named == 1 and ARGV[topic_at]
local members, member_count = {}, 0
for at = first, #ARGV, 7 do
  member_count = member_count + 1
  members[member_count] = ARGV[at]
end
local records = redis.call('HMGET', jobs, unpack(members))
local answers, fresh, fresh_due, replacing = {}, {}, {}, {}

local function due_of(arg)
  local when = ARGV[arg + 3]
  if when == '+0' then return now_floor end
  if string.byte(when) == 43 then return now_ceil + tonumber(when) end
  -- What is past is due now, so that lateness counts from when it was accepted.
  return math.max(tonumber(when), now_floor)
end

local function current_due(job)
  if job.state == SCHEDULED then return tonumber(redis.call('ZSCORE', due, job.member)) or now_floor end
  return job[DUE]
end

local function answer_of(word, job, due_ms)
  return string.format('%s %d %d %d', word, job.revision, due_ms, job.state)
end

local function same(old, old_due, arg, due_ms)
  local body = ARGV[arg + 6]
  if old_due ~= due_ms or old.options ~= ARGV[arg + 5] or old.lane ~= tonumber(ARGV[arg + 2]) then return false end
  if has_mark(old, BODY_DROPPED) then return false end
  if old.apart then return redis.call('HGET', bodies, old.member) == body end
  return old.body == body
end

-- An id that is taken: the first answer again, what stands, or a place in `replacing`.
local function meet(old, at, arg, topic)
  local on_conflict, due_ms = ARGV[arg + 4], due_of(arg)
  local old_due = current_due(old)
  if old.request == ARGV[arg + 1] then
    answers[at] = answer_of(has_mark(old, REPLACED) and 'replaced' or 'created', old, old_due)
  elseif on_conflict ~= 'replace' then
    answers[at] = answer_of(on_conflict == 'raise' and 'exists' or 'kept', old, old_due)
  elseif same(old, old_due, arg, due_ms) then
    answers[at] = answer_of('kept', old, old_due)
  elseif old.state >= RUNNING and room[topic] < 1 then
    answers[at] = 'full 0 0 0'
  else
    if old.state >= RUNNING then room[topic] = room[topic] - 1 end
    replacing[#replacing + 1] = {old = old, at = at, due = due_ms}
  end
end

for at = 1, #members do
  local member = members[at]
  local arg = first + 7 * (at - 1)
  local topic = only or topic_of(member)
  if records[at] then
    meet(read(member, records[at]), at, arg, topic)
  elseif room[topic] < 1 then
    answers[at] = 'full 0 0 0'
  else
    room[topic] = room[topic] - 1
    local number = #fresh + 1
    fresh[number], fresh_due[number] = at, due_of(arg)
  end
end

local total = #fresh + #replacing
if total == 0 then return {now_floor, 0, answers} end
local revision = take_numbers(2 * total)
local entry = revision + total

local function run_of(mark, marks, number, due_ms)
  return encode(START, mark + 64, 0, 0, 0, marks, number) .. NOT_ENDED .. NOT_CLAIMED .. encode(NUMBER, due_ms)
end

-- Build a record without a table in between: this is the path of bulk scheduling.
local function place(verb, member, arg, topic, number, due_ms, marks)
  local options, body, lane = ARGV[arg + 5], ARGV[arg + 6], tonumber(ARGV[arg + 2])
  local state, run = SCHEDULED, nil
  if due_ms <= now_floor then state = READY end
  local mark = state + lane * 8
  if options ~= '' then mark = mark + 32 end
  if #body > INLINE_BYTES then
    put_bodies[#put_bodies + 1] = member
    put_bodies[#put_bodies + 1] = body
    body, mark = '', mark + 128
  end
  if state == READY then
    line_up(member, topic, lane, entry + number)
    run = run_of(mark, marks, entry + number, due_ms)
  else
    schedule(member, due_ms)
    if marks > 0 then run = run_of(mark, marks, 0, due_ms) end
  end
  local record = (run or string.char(mark)) .. encode(NUMBER, revision + number) .. ARGV[arg + 1] .. options .. body
  count(topic, state, 1)
  keep(verb, member, record, nil, due_ms)
end

for number = 1, #fresh do
  local at = fresh[number]
  local member = members[at]
  place('enqueued', member, first + 7 * (at - 1), only or topic_of(member), number - 1, fresh_due[number], 0)
  answers[at] = fresh_due[number]
end

for position, each in ipairs(replacing) do
  local old, arg = each.old, first + 7 * (each.at - 1)
  local topic = topic_of(old.member)
  if old.state == READY or old.state == RUNNING then drop_entry(topic, lane_of(old), old[ENTRY]) end
  if old.state == RUNNING then
    freed[#freed + 1] = old.member
    stops[#stops + 1] = old.member .. ' ' .. old[TOKEN]
  end
  if old.state > RUNNING then revive(old, topic) else count(topic, old.state, -1) end
  if old.state == SCHEDULED and each.due <= now_floor then unscheduled[#unscheduled + 1] = old.member end
  if old.apart and #ARGV[arg + 6] <= INLINE_BYTES then dropped_bodies[#dropped_bodies + 1] = old.member end
  dropped_outcomes[#dropped_outcomes + 1] = old.member
  dropped_progress[#dropped_progress + 1] = old.member
  local number = #fresh + position - 1
  place('replaced', old.member, arg, topic, number, each.due, REPLACED + bit.band(old[MARKS], AWAITED))
  answers[each.at] = string.format('replaced %d %d %d', revision + number, each.due, each.due <= now_floor and READY or SCHEDULED)
end
commit(now_floor, nonce)
wake_topics()
return {now_floor, revision, answers}
