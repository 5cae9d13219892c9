#!lua
-- enqueue: accept jobs, each new, kept as it was, or in place of an older one with its id.
--
-- moves    (new) -> scheduled or ready; with replace also any state -> scheduled or ready
-- uses     clock records replies changes specs endings requests
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters, limits and pauses of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          next_due  zset    topic -> when its earliest job is due
--          ready_topics  set  topics with ready jobs
--          quarantine  hash  member -> record that is damaged
--          leases    zset    member -> lease end
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          requests  hash    nonce of a call -> its answer
--          old_requests  hash  the same of the calls before those
--          events    stream  what happened
--          timer     stream  the earliest due time changed
--          woken_topics  stream  names of topics that were made ready, for workers with many
--          callbacks  list   names of topics with callbacks that are ready
--          stop      channel tells workers to stop a run
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          seen      the highest number of the shard that its sender had seen by then
--          repeats   '1' if it may replace a job, and so is remembered; '2' if a bulk writer may repeat it after minutes, and
--                    so it replaces only what nobody has changed since it was first sent; else '0'
--          since     '' or, for each job in 8 bytes, the highest number that the shard can have given before its sender
--                    first sent this; what was changed later is kept, as if it had come behind
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, spec, request with options
--                    with body; see lib/specs.lua
-- returns  {now_ms, revision of the first created, for each job due_ms if it was created, its revisions following
--          each other, else '<word> <revision> <due_ms> <state>', word one of created kept replaced exists full unknown}
-- cost     O(jobs * log n)

-- The first bytes of a bulk writer's requests are those of its run: its own rows may follow each other.
local RUN_BYTES = 3

local now_floor, now_ceil = clock(now_ms)
if repeats == '1' then
  local answer = recall(nonce)
  if answer then return answer end
end
local late = repeats == '2' or (repeats == '1' and is_forgotten(sent_ms))
local named = tonumber(topic_count)
local room = {}  -- where there is a limit
for at = 1, named do
  local topic = ARGV[topic_at + at - 1]
  name_topic(topic, at)
  room[topic] = shard[LIMITED] and met.room_of(topic)
end

local first = topic_at + named
local only = named == 1 and ARGV[topic_at]
local members, member_count = {}, 0
for at = first, #ARGV, 3 do
  member_count = member_count + 1
  members[member_count] = ARGV[at]
end
local records = redis.call('HMGET', jobs, unpack(members))
local answers, replacing = {}, {}

local function same(old, old_due, spec, rest, due_ms)
  if old_due ~= due_ms or old.lane ~= floor(spec / 8) % 4 or has_mark(old, BODY_DROPPED) then return false end
  local body = old.apart and redis.call('HGET', bodies, old.member) or old.body
  local options = ages.said_options(old)
  return options .. body == cut(rest, REQUEST_LENGTH + 1) and (options ~= '') == (spec % 64 >= 32)
end

-- Take a place of a topic; only one with a limit can be full.
local function has_room(topic)
  local left = room[topic]
  if left then room[topic] = left - 1 end
  return not left or left >= 1
end

-- An id that is taken: the first answer again, what stands, or a place in `replacing`.
local function meet(old, at, spec, due_ms, topic)
  local rest = ARGV[first + 3 * at - 1]
  local answer, old_due = met.answer_to(old, spec % ASKS, rest, now_floor)
  if answer then
    answers[at] = answer
  elseif same(old, old_due, spec, rest, due_ms) then
    answers[at] = met.answer_of('kept', old, old_due)
  elseif since ~= '' and old.revision > decode(NUMBER, since, 8 * at - 7) then
    answers[at] = met.answer_of('kept', old, old_due)
  elseif late and old.revision > tonumber(seen) and cut(old.request, 1, RUN_BYTES) ~= cut(rest, 1, RUN_BYTES) then
    answers[at] = 'unknown 0 0 0'
  elseif old.state >= RUNNING and not has_room(topic) then
    answers[at] = 'full 0 0 0'
  else
    replacing[#replacing + 1] = {old = old, at = at, spec = spec, due = due_ms}
  end
end

-- Two numbers for each that is placed, a revision and an entry, and none if there is none to place.
local placed, revision = 0, take_numbers(2 * member_count)
local entry = revision + member_count

-- What a spec says is taken apart once for all neighbours that have the same.
local read_spec, read_topic, base, lane, asks, awaits

local function read_of(spec, topic)
  read_spec, read_topic, base, lane = spec, topic, spec % 64 - spec % 8, floor(spec / 8) % 4
  asks, awaits = spec % 8 >= ASKS, spec >= AWAITS
  use_lane(topic, lane)
end

-- Build a record without a table in between: this is the path of bulk scheduling.
local function place(verb, at, topic, spec, number, due_ms, marks, place_due)
  if spec ~= read_spec or topic ~= read_topic then read_of(spec, topic) end
  local member, rest, mark, run = members[at], ARGV[first + 3 * at - 1], base, nil
  if asks then marks = marks + REPLY end
  if awaits then marks = bit.bor(marks, AWAITED) end
  if #rest > INLINE_BYTES then
    local body_at = REQUEST_LENGTH + 1 + (mark >= 32 and ages.bytes_of(rest, REQUEST_LENGTH + 1) or 0)
    if #rest - body_at >= INLINE_BYTES then
      put_bodies[#put_bodies + 1] = member
      put_bodies[#put_bodies + 1] = cut(rest, body_at)
      rest, mark = cut(rest, 1, body_at - 1), mark + 128
    end
  end
  if due_ms <= now_floor then
    mark = mark + READY
    line_up(member, topic, lane, entry + number)
    run = run_of(mark, marks, entry + number, due_ms)
    count(topic, READY, 1)
  else
    place_due(member, topic, due_ms)
    if marks > 0 then run = run_of(mark, marks, 0, due_ms) end
    count(topic, SCHEDULED, 1)
  end
  if run then
    keep(verb, member, run .. encode(NUMBER, revision + number) .. rest, nil, due_ms)
  else
    store(member, encode('>BI8', mark, revision + number) .. rest)
    -- The head of the record, which the event keeps; struct takes the first six bytes of `rest` for the request.
    note(verb, member, encode(WAITING, mark, revision + number, rest, due_ms))
  end
  return mark >= 128
end

for at = 1, member_count do
  local topic = only or topic_of(members[at])
  local spec, ms = decode(SPEC, ARGV[first + 3 * at - 2])
  local due_ms = time_of(spec, ms, now_floor, now_ceil)
  if records[at] and not is_whole(records[at]) then
    local was = damage.counted_as(members[at], records[at])
    -- Whatever it took of a limit is free.
    if room[topic] and was and was <= READY then room[topic] = room[topic] + 1 end
    damage.put_aside(members[at], records[at])
    records[at] = false
  end
  if records[at] then
    meet(read(members[at], records[at]), at, spec, due_ms, topic)
  elseif not has_room(topic) then
    answers[at] = 'full 0 0 0'
  else
    place('enqueued', at, topic, spec, placed, due_ms, 0, schedule)
    placed, answers[at] = placed + 1, due_ms
  end
end

-- A job that replaces another says since when there is one with its id.
local function with_created(spec, rest, created_ms)
  local body_at = REQUEST_LENGTH + 1 + (spec % 64 >= 32 and ages.bytes_of(rest, REQUEST_LENGTH + 1) or 0)
  local new = {options = cut(rest, REQUEST_LENGTH + 1, body_at - 1)}
  ages.set_part(new, CREATED, created_ms)
  return spec % 64 < 32 and spec + 32 or spec, cut(rest, 1, REQUEST_LENGTH) .. new.options .. cut(rest, body_at)
end

for _, each in ipairs(replacing) do
  local old, at = each.old, each.at
  local rest_at = first + 3 * at - 1
  each.spec, ARGV[rest_at] = with_created(each.spec, ARGV[rest_at], ages.created_of(old))
  local topic = topic_of(old.member)
  displace(old, topic)
  if old.state == SCHEDULED and each.due <= now_floor then unschedule(old.member, topic) end
  local number = placed
  placed = placed + 1
  local apart = place('replaced', at, topic, each.spec, number, each.due, REPLACED + bit.band(old[MARKS], AWAITED), move_due)
  if old.apart and not apart then dropped_bodies[#dropped_bodies + 1] = old.member end
  answers[at] = string.format('replaced %d %d %d', revision + number, each.due, each.due <= now_floor and READY or SCHEDULED)
end
if placed == 0 then sequence = sequence_was end
commit(now_floor, nonce)
wake_topics(now_floor)
local answer = {now_floor, revision, answers}
return repeats == '1' and not late and remember(nonce, answer, now_floor, sent_ms) or answer
