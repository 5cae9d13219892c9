#!lua
-- enqueue: accept jobs, each new, kept as it was, or in place of an older one with its id.
--
-- moves    (new) -> scheduled or ready; with replace also any state -> scheduled or ready
-- uses     clock records topics events lanes schedule ending
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
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, request,
--                    lane, when ('+ms' from now or absolute), on_conflict, options, body
-- returns  for each job '<word> <revision> <due_ms> <state>', word one of created kept replaced exists full
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
local members = {}
for at = first, #ARGV, 7 do members[#members + 1] = ARGV[at] end
local existing = fetch(members)
local answers, placed = {}, {}

local function current_due(job)
  if job.state == SCHEDULED then return tonumber(redis.call('ZSCORE', due, job.member)) or now_floor end
  return job.due
end

local function answer_of(word, job, due_ms)
  return word .. ' ' .. job.revision .. ' ' .. due_ms .. ' ' .. job.state
end

local function same(old, old_due, new, due_ms, body)
  if old_due ~= due_ms or old.options ~= new.options or old.lane ~= new.lane then return false end
  if has_mark(old, BODY_DROPPED) then return false end
  if old.apart then return redis.call('HGET', bodies, old.member) == body end
  return old.body == body
end

for at, member in ipairs(members) do
  local arg = first + 7 * (at - 1)
  local request, lane, when, on_conflict = ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4]
  local old = existing[at]
  local topic = topic_of(member)
  if old and old.request == request then
    -- The same call again, its first reply lost: the first answer again.
    answers[at] = answer_of(has_mark(old, REPLACED) and 'replaced' or 'created', old, current_due(old))
  elseif old and on_conflict ~= 'replace' then
    answers[at] = answer_of(on_conflict == 'raise' and 'exists' or 'kept', old, current_due(old))
  else
    local due_ms
    if string.sub(when, 1, 1) == '+' then
      due_ms = now_ceil + tonumber(when)
    else
      due_ms = math.max(tonumber(when), 0)
    end
    local body = ARGV[arg + 6]
    local job = {
      member = member, request = request, state = SCHEDULED, lane = tonumber(lane), options = ARGV[arg + 5],
      apart = #body > INLINE_BYTES, body = body, attempts = 0, crashes = 0, entry = 0, token = 0, nonce = NO_NONCE,
      verb = 0, marks = 0, started = 0, ended = 0, late = UNKNOWN, worker = '', revision = 0,
    }
    local old_due = old and current_due(old)
    if old and same(old, old_due, job, due_ms, body) then
      answers[at] = answer_of('kept', old, old_due)
    elseif (not old or old.state >= RUNNING) and room[topic] < 1 then
      answers[at] = 'full 0 0 0'
    else
      if not old or old.state >= RUNNING then room[topic] = room[topic] - 1 end
      -- What is past is due now, so that lateness counts from when it was accepted.
      if due_ms <= now_floor then due_ms = now_floor end
      if old then
        job.marks = REPLACED + bit.band(old.marks, AWAITED)
        job.due = due_ms
      end
      placed[#placed + 1] = {job = job, topic = topic, due = due_ms, old = old, at = at, ready = due_ms <= now_floor}
    end
  end
end

if #placed == 0 then return answers end

local revision = take_numbers(2 * #placed)
local entry = revision + #placed
for at, place in ipairs(placed) do
  place.job.revision = revision + at - 1
  event(place.old and 'replaced' or 'enqueued', place.job, 0, place.due)
end
emit(now_floor, nonce)

local bodies_now, bodies_gone, unscheduled = {}, {}, {}
for at, place in ipairs(placed) do
  local job, old, topic = place.job, place.old, place.topic
  if old then
    if old.state == READY then
      drop_entry(topic, lane_of(old), old.entry)
    elseif old.state == RUNNING then
      drop_entry(topic, lane_of(old), old.entry)
      redis.call('ZREM', leases, old.member)
      redis.call('PUBLISH', stop, old.member .. ' ' .. old.token)
    end
    if old.state > RUNNING then revive(old, topic) else count(topic, old.state, -1) end
    if old.state == SCHEDULED and place.ready then unscheduled[#unscheduled + 1] = old.member end
    if old.apart and not job.apart then bodies_gone[#bodies_gone + 1] = old.member end
    outcome_drops[#outcome_drops + 1] = old.member
    progress_drops[#progress_drops + 1] = old.member
  end
  if place.ready then
    job.due = place.due
    line_up(job, topic, entry + at - 1)
  else
    schedule(job, place.due)
  end
  count(topic, job.state, 1)
  if job.apart then
    bodies_now[#bodies_now + 1] = job.member
    bodies_now[#bodies_now + 1] = job.body
    job.body = ''
  end
  put(job)
  answers[place.at] = answer_of(old and 'replaced' or 'created', job, place.due)
end

write_records()
if #bodies_now > 0 then redis.call('HSET', bodies, unpack(bodies_now)) end
if #bodies_gone > 0 then redis.call('HDEL', bodies, unpack(bodies_gone)) end
if #unscheduled > 0 then redis.call('ZREM', due, unpack(unscheduled)) end
write_schedule()
write_entries()
write_endings()
write_counts()
wake_topics()
return answers
