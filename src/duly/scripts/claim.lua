#!lua flags=allow-oom
-- claim: promote what is due, then lease ready jobs of the named topics to a worker.
--
-- moves    scheduled -> ready; ready -> running; ready, too late to start -> cancelled
-- uses     clock records replies changes endings promotion timers
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters and pauses of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          due       zset    member -> due_ms
--          leases    zset    member -> lease end
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          claims    hash    worker -> its last claim, for a reply that was lost
--          events    stream  what happened
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  seven keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the tokens and the event entry, 8 bytes; the same again when a reply was lost
--          worker    its name, new with every start
--          worker_id 8 bytes that stand for its name in records
--          number    of this claim, counted by the worker: whose turn it is
--          again     '1' when this claim was sent before and its reply lost
--          lease_ms  how long the leases run
--          grace_ms  how far a lease may outlast the time to run
--          limit     at most this many jobs
--          max_bytes about this many bytes of bodies at most
--          suspects  how many jobs with a crash behind them the worker may take
--          callbacks '1' for a deliverer: it takes callbacks, and all jobs of topics that have one; others take the rest
--          keep_ms   how long an expired job is kept
--          name      of the timer in this process, '' for none
--          role      leader, follower or auto
--          generation  that the worker knows of, '' without a record: what it finishes counts as finished in that one
--          topic...  three for each topic: name, free slots, time to run of its handler
-- returns  {now_ms, next_due_ms, next_lease_ms, rank of the timer, how many others hold a slot,
--          topics due but not named,
--          {end of its last pause for each topic}, {member, record, ...}, {member, body kept apart, ...},
--          microseconds beyond now_ms}
-- cost     O(limit * log n)

local now, _, micros = clock(now_ms)
must_be_sound(generation)
local names, free, ttr, place = {}, {}, {}, {}
for at = topic_at, #ARGV, 3 do
  local position = #names + 1
  names[position], free[position], ttr[position] = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  place[ARGV[at]] = position
  name_topic(ARGV[at], position)
end

local fields = {}
for _, topic in ipairs(names) do
  local at = #fields
  fields[at + 1], fields[at + 2], fields[at + 3] = topic .. ':ready', topic .. ':paused', topic .. ':resumed'
  fields[at + 4], fields[at + 5], fields[at + 6] = topic .. ':callback', topic .. ':scheduled', topic .. ':lanes'
end
local about = #fields > 0 and redis.call('HMGET', topics, unpack(fields)) or {}
local ready, resumed, closed, calls, delivers = {}, {}, {}, {}, callbacks == '1'
-- What waits to be due is of several kinds if its topics or its lanes differ: then who is due first need not be who
-- starts first.
local scheduled, kinds = {}, 0
for at = 1, #names do
  local paused, has_lanes
  ready[at], paused, resumed[at], calls[at], scheduled[at], has_lanes = unpack(about, 6 * at - 5, 6 * at)
  ready[at], scheduled[at] = tonumber(ready[at]) or 0, tonumber(scheduled[at]) or 0
  -- A topic with a callback has no other worker than deliverers.
  closed[at] = paused or (calls[at] and not delivers)
  if closed[at] then free[at] = 0 end
  if scheduled[at] > 0 then kinds = kinds + (has_lanes and 2 or 1) end
  resumed[at] = resumed[at] or '0'
end

-- Whether a job of a topic with this mark, or in this lane, is for who asks.
local function is_mine(position, mark)
  if mark % 32 >= 8 * CALLBACK then return delivers end
  return not delivers or calls[position]
end

local leased, long = {}, {}
local turn, left, bytes = tonumber(number), tonumber(limit), tonumber(max_bytes)
local suspects_left = tonumber(suspects)

local function add_body(member)
  local at = #long
  long[at + 1], long[at + 2] = member, redis.call('HGET', bodies, member) or ''
end

local function answer(unnamed, next_due)
  local rank, peers = hold_timer(name, role, now)
  return {now, next_due or first_score(due), first_score(leases), rank, peers, names_of(unnamed), resumed, leased, long, micros}
end

-- A claim that may have run before is known by its nonce; one that finds nothing to take need not ask.
local next_due = first_score(due)
local idle = turn % 32 ~= 0 and (next_due == '' or tonumber(next_due) > now)
for at = 1, #names do idle = idle and (ready[at] == 0 or free[at] == 0) end
if idle and again == '0' then return answer({}, next_due) end

local last = redis.call('HGET', claims, worker)
if last and string.sub(last, 1, 8) == nonce then
  -- The same claim again, its reply lost: the same leases again, whichever of the two came first.
  local members = {}
  for member in string.gmatch(string.sub(last, 9), '[^\n]+') do members[#members + 1] = member end
  for _, job in ipairs(fetch(members)) do
    if job and job.state == RUNNING and job[NONCE] == nonce then
      local at = #leased
      leased[at + 1], leased[at + 2] = job.member, write(job)
      if job.apart then add_body(job.member) end
    end
  end
  return answer({})
end

local taken, taken_of, from_ready, names_taken, token = 0, {}, {}, {}, nil
local lease_for, grace, until_of = tonumber(lease_ms), tonumber(grace_ms), {}
for at = 1, #names do until_of[at] = now + math.min(lease_for, ttr[at] + grace) end
-- What this claim writes into every record: nonce, worker, started.
local claimed_by = nonce .. worker_id .. encode(NUMBER, now)

-- Where options begin in what every record ends with: revision, request, options, body.
local OPTIONS_IN_REST = 15
-- A run up to its token: `fresh` has those of jobs that never ran, by their mark, which are most.
local BEGUN, fresh = '>BHHBBI8c12', {}

local function begun(mark, attempts, crashes, marks)
  mark = mark - mark % 8 + RUNNING
  if attempts + crashes + marks > 0 then return encode(BEGUN, mark, attempts, crashes, 0, marks, 0, NOT_ENDED) end
  local begins = fresh[mark] or encode(BEGUN, mark, 0, 0, 0, 0, 0, NOT_ENDED)
  fresh[mark] = begins
  return begins
end

-- Lease a job to the worker if its body still fits into the answer; one always does.
local function lease(member, position, mark, attempts, crashes, marks, due_ms, rest)
  local size = #rest
  if mark >= 128 then size = redis.call('HSTRLEN', bodies, member) end
  if size > bytes and taken > 0 then
    bytes = 0
    return false
  end
  if taken == 0 then token = take_numbers(left) end
  bytes = bytes - size
  local until_ms = until_of[position]
  if mark % 64 >= 32 then
    local _, own_ttr = decode(OPTIONS, rest, OPTIONS_IN_REST)
    if own_ttr > 0 then until_ms = now + math.min(lease_for, own_ttr + grace) end
  end
  local at = 2 * taken + 1
  local record = begun(mark, attempts, crashes, marks) .. encode(NUMBER, token + taken) .. claimed_by
    .. encode(NUMBER, due_ms) .. rest
  lease_scores[at], lease_scores[at + 1] = until_ms, member
  lease_count = at + 1
  leased[at], leased[at + 1] = member, record
  note('claimed', member, cut(record, 1, HEAD_BYTES))
  if mark >= 128 then add_body(member) end
  taken = taken + 1
  names_taken[taken] = member
  taken_of[position] = (taken_of[position] or 0) + 1
  free[position], left = free[position] - 1, left - 1
  if crashes > 0 then suspects_left = suspects_left - 1 end
  return true
end

-- The oldest that wait in a lane.  What is met here leaves it, by one trim: it is leased, or its entry is outdated.
local function take_ready(position, lane, want)
  local topic = names[position]
  local key = stream(topic, lane)
  local found = redis.call('XRANGE', key, '-', '+', 'COUNT', want)
  if #found == 0 then return end
  local members = {}
  for at = 1, #found do members[at] = found[at][2][2] end
  local records = redis.call('HMGET', jobs, unpack(members))
  for at = 1, #records do
    local entry, member, record = number_of(found[at][1]), members[at], records[at]
    local mark, attempts, crashes, marks, its_entry, expires, _ = 0, 0, 0, 0, 0, 0, nil
    if record then
      mark, attempts, crashes, _, marks, its_entry = decode(START, record)
      if mark % 64 >= 32 then expires = wishes_of(record, mark) end
    end
    if record and mark % 8 == READY and its_entry == entry then
      if expires > 0 and expires < now then
        finish('cancelled', read(member, record), topic, CANCELLED, now, tonumber(keep_ms), '{"type":"expired"}', 'expired')
      elseif lease(member, position, mark, attempts, crashes, marks, decode(NUMBER, record, DUE_AT), cut(record, REVISION_AT)) then
        from_ready[position] = (from_ready[position] or 0) + 1
      else
        return
      end
      ready[position] = ready[position] - 1
    end
    taken_upto[key] = entry
  end
end

local lane_order = turn % 8 == 7 and {CALLBACK, 2, 0, 1} or {1, 0, 2, CALLBACK}
for step = 0, #names - 1 do
  -- Each call begins with another topic, so that none starves.
  local position = (turn + step) % #names + 1
  -- Counters say where to look; now and then the streams are asked themselves.
  if free[position] > 0 and left > 0 and bytes > 0 and (ready[position] > 0 or turn % 32 == 0) then
    if suspects_left > 0 and is_mine(position, 8 * SUSPECT) then
      take_ready(position, SUSPECT, math.min(suspects_left, free[position], left))
    end
    for _, lane in ipairs(lane_order) do
      local want = math.min(free[position], left)
      if want > 0 and bytes > 0 and is_mine(position, 8 * lane) then take_ready(position, lane, want) end
    end
  end
end

-- What is due goes to its stream; but where a slot is still free, nothing waits there, and it starts at once.
-- A claim that took its fill of ready jobs moves a few only, so that none keeps the server busy for two.
local MOVED_AT_ONCE, MOVED_AT_LEAST = 128, 16
local numbers, used, most = nil, 0, math.max(MOVED_AT_ONCE - taken, MOVED_AT_LEAST)

local function start_or_promote(member, topic, record, due_ms, mark)
  local position = place[topic]
  if free[position] > 0 and left > 0 and bytes > 0 and is_mine(position, mark) then
    local attempts, crashes, marks, rest, _ = 0, 0, 0, nil, nil
    if mark % 128 >= 64 then
      mark, attempts, crashes, _, marks = decode(START, record)
      rest = cut(record, REVISION_AT)
    else
      -- Its first run: all that there is to keep is what follows the mark.
      mark, rest = mark + 64, cut(record, 2)
    end
    if (crashes == 0 or suspects_left > 0) and lease(member, position, mark, attempts, crashes, marks, due_ms, rest) then
      return
    end
  end
  numbers = numbers or take_numbers(MOVED_AT_ONCE)
  promote(member, topic, record, due_ms, numbers + used)
  used = used + 1
  ready[position] = ready[position] + 1
end

-- Of one kind, those beyond the free slots are in their order already: they stay where they are, for the next claim.
local looked_at, were_taken = most, taken
if kinds == 1 and left > 0 then looked_at = math.min(most, left) end
local unnamed = for_each_due(now, 0, looked_at, tonumber(keep_ms), start_or_promote)
if taken == were_taken and looked_at < most and next_due ~= '' and tonumber(next_due) <= now then
  -- Not one of them could start: no slot stays free for what stands behind jobs that are too late, or for others.
  local more = for_each_due(now, looked_at, most - looked_at, tonumber(keep_ms), start_or_promote)
  for topic in pairs(more) do unnamed[topic] = true end
end

for position, number in pairs(taken_of) do
  local topic, waited = names[position], from_ready[position] or 0
  count(topic, RUNNING, number)
  count(topic, READY, -waited)
  count(topic, SCHEDULED, waited - number)
end
if taken > 0 then redis.call('HSET', claims, worker, nonce .. table.concat(names_taken, '\n')) end
keep_all(leased, 2 * taken)
commit(now, nonce, worker)

next_due = first_score(due)
local more_due = next_due ~= '' and tonumber(next_due) <= now
for position, topic in ipairs(names) do
  if called[topic] or (delivers and taken_of[position] and ready[position] > 0) then call_deliverers(topic) end
  if woken[topic] and ready[position] > 0 then
    wake(topic, ready[position])
  elseif taken_of[position] or (left <= 0 and not closed[position]) then
    -- A full worker passes on what it did not come to as well: the token that woke it may have been of that topic.
    local list = KEYS[first_key[topic] + WAKE]
    if ready[position] <= 0 and not (more_due and scheduled[position] > 0) then
      redis.call('DEL', list)
    elseif redis.call('LLEN', list) == 0 then
      redis.call('LPUSH', list, '1')
    end
  end
end
return answer(unnamed, next_due)
