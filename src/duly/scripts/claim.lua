#!lua flags=allow-oom
-- claim: lease jobs of the named topics to a worker: those that are ready, then those that are due.
--
-- moves    scheduled, due -> running or ready; ready -> running; either, too late to start -> cancelled
-- uses     clock records replies changes endings promotion shares timers
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters, pauses and waiters of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          next_due  zset    topic -> when its earliest job is due
--          ready_topics  set  topics with ready jobs
--          leases    zset    member -> lease end
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          quarantine  hash  member -> record that is damaged
--          claims    hash    worker -> its last claim, for a reply that was lost
--          events    stream  what happened
--          woken_topics  stream  names of topics that were made ready, for workers with many
--          callbacks  list   names of topics with callbacks that are ready
--          (replies)         what became of jobs whose senders asked to be told
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the tokens and the event entry, 8 random bytes; the same again when a reply was lost
--          worker    its name, new with every start
--          worker_id 8 bytes that stand for its name in records
--          again     '1' when this claim was sent before and its reply lost, 'maybe' when its sender cannot tell, else '0'
--          client    4 bytes that stand for the client that asks
--          claim_number  grows from claim to claim of that client
--          lease_ms  how long the leases run
--          grace_ms  how far a lease may outlast the time to run
--          limit     at most this many jobs
--          max_bytes about this many bytes of bodies at most
--          half      '0' or '1' if the worker runs jobs of that half of a group that crashed together, else ''
--          alone     '1' if the worker runs nothing, and so may take a job that has to run isolated
--          wait_ms   how long the worker waits for more where slots stay free, 0 if it does not
--          looks_itself  '1' if it looks by itself when a job falls due while it waits
--          broad     '1' if the worker has more topics than it names
--          delivers  '1' for a deliverer: it takes callbacks, and all jobs of topics that have one; others take the rest
--          keep_ms   how long an expired job is kept
--          name      of the timer in this process, '' for none
--          role      leader, follower or auto
--          generation  that the worker knows of, '' without a record: what it finishes counts as finished in that one
--          topic...  four for each topic: name, free slots, time to run of its handler, how many jobs that have to run
--                    isolated may each have a process of their own there, '' where they run alone on the worker
-- returns  {now_ms, next_due_ms, '1' if that is of a topic that is not named, next_lease_ms, rank of the timer, how many others hold a slot,
--          when to ask again for what was left to others ('' for no such time),
--          when it should look by itself for what falls due ('' for no such time), its place among those that do for each
--          topic, '1' if the worker should end what it runs, so that a job can run isolated,
--          {end of its last pause for each topic}, {member, record, ...}, {member, body kept apart, ...},
--          microseconds beyond now_ms, {named topics that have more, if it is broad}}
-- cost     O(limit * log n + topics)

-- Of a hundred claims that find work in all lanes, high comes first in 76, normal in 19 and low in 5.
local HIGH, LOW, HIGH_WEIGHT, NORMAL_WEIGHT, LOW_WEIGHT = 1, 2, 16, 4, 1
local FIELDS, WANTS, MOVED_AT_ONCE, MOVED_AT_LEAST, TOPICS_SERVED = 6, 4, 128, 16, 8
-- How long the other half of a group that crashed together is left to others, and how long one worker may make room.
local HALF_MS, ROOM_MS, BROAD_MS, STANDS_BY = 100, 60000, 10000, 2

local now, _, micros = clock(now_ms)
must_be_sound(generation)
local names, free, ttr, processes = {}, {}, {}, {}
for at = topic_at, #ARGV, WANTS do
  local position = #names + 1
  names[position], free[position], ttr[position] = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  processes[position] = tonumber(ARGV[at + 3])
  name_topic(ARGV[at], position)
end
local rank, peers = hold_timer(name, role, now)
if broad == '1' and (tonumber(shard[BROAD]) or 0) < now + BROAD_MS / 2 then
  redis.call('HSET', meta, 'broad', now + BROAD_MS)
end

local fields = {}
for _, topic in ipairs(names) do
  local at = #fields
  fields[at + 1], fields[at + 2], fields[at + 3] = topic .. ':ready', topic .. ':paused', topic .. ':resumed'
  fields[at + 4], fields[at + 5], fields[at + 6] = topic .. ':callback', topic .. ':waiting', topic .. ':lanes'
end
fields[#fields + 1] = ALL .. ':waiting'
local about = redis.call('HMGET', topics, unpack(fields))
-- Workers with many topics wait for all of them at once.
local all_others, all_slots, all_served, all_known = other_waiters(about[#fields] or '', worker_id, now)
-- Asked again only where this claim has changed something: most find nothing, and idle workers ask every second.
local first_due = redis.call('ZRANGE', next_due, 0, 0, 'WITHSCORES')
local heads = first_due[1] and #names > 0 and redis.call('ZMSCORE', next_due, unpack(names)) or {}
local ready, resumed, closed, calls, used, others, slots, served, known = {}, {}, {}, {}, {}, {}, {}, {}, {}
local places = {}
local due, looks = {}, {}
-- Counters say where to look; now and then the streams are asked themselves.
local anyway = again == '0' and string.byte(nonce) % 32 == 0
for at = 1, #names do
  local paused, waiting
  ready[at], paused, resumed[at], calls[at], waiting, used[at] = unpack(about, FIELDS * at - FIELDS + 1, FIELDS * at)
  ready[at], resumed[at], used[at] = tonumber(ready[at]) or 0, resumed[at] or '0', used[at] or ''
  others[at], slots[at], served[at], known[at], places[at] = other_waiters(waiting or '', worker_id, now)
  slots[at] = slots[at] + all_slots
  if broad == '1' then served[at] = all_served end
  -- A topic with a callback has no other worker than deliverers.
  closed[at] = paused or (calls[at] and delivers ~= '1')
  if closed[at] then free[at] = 0 end
  due[at] = heads[at] and tonumber(heads[at]) <= now
  if free[at] > 0 and (ready[at] > 0 or due[at] or anyway) then looks[#looks + 1] = at end
end

-- Whether a job of a topic with this mark, or in this lane, is for the worker that asks.
local function is_mine(position, mark)
  if mark % 32 >= 8 * CALLBACK then return delivers == '1' end
  return delivers ~= '1' or calls[position]
end

local leased, long, open_ms, room, left_behind, committed = {}, {}, nil, '0', {}, false
local left, bytes = tonumber(limit), tonumber(max_bytes)

local function add_body(member)
  local at = #long
  long[at + 1], long[at + 2] = member, redis.call('HGET', bodies, member) or ''
end

-- Say of each topic whether the worker waits for more of it, so that what comes next is divided among those that do.
local function wait_for_more()
  local changed, gone, waits = {}, {}, tonumber(wait_ms)

  local function wait_for(name, was, its_others, slots_free, left_some)
    local until_ms = 0
    if left_some then
      until_ms, slots_free = now + SHARE_MS, 0
    elseif waits > 0 and slots_free > 0 then
      until_ms = now + (broad == '1' and BROAD_MS or waits)
      slots_free = math.min(slots_free, LOOKS - 1) + (looks_itself == '1' and LOOKS or 0)
    end
    if until_ms == 0 and was and its_others == '' then
      gone[#gone + 1] = name .. ':waiting'
    elseif (until_ms == 0 and was)
      or (until_ms > 0 and not (was and was[2] == slots_free and was[1] > now + (until_ms - now) / 2)) then
      changed[#changed + 1] = name .. ':waiting'
      changed[#changed + 1] = its_others .. (until_ms > 0 and encode(WAITER, worker_id, until_ms, slots_free) or '')
    end
  end

  if broad == '1' then
    wait_for(ALL, all_known, all_others, left, next(left_behind) and true)
  else
    for at = 1, #names do wait_for(names[at], known[at], others[at], math.min(free[at], left), left_behind[at]) end
  end
  if changed[1] then redis.call('HSET', topics, unpack(changed)) end
  if gone[1] then redis.call('HDEL', topics, unpack(gone)) end
end

-- When the worker should look for what falls due: the first of those that wait at that time, each next a little later.
local function next_look()
  if looks_itself ~= '1' then return '' end
  local look_ms
  if committed and left > 0 and first_due[1] then heads = redis.call('ZMSCORE', next_due, unpack(names)) end
  for at, head in ipairs(left > 0 and heads or {}) do
    if head and free[at] > 0 and places[at] <= STANDS_BY then
      look_ms = math.min(look_ms or math.huge, math.max(tonumber(head), now) + SHARE_MS * places[at])
    end
  end
  return look_ms and string.format('%d', look_ms) or ''
end

local function answer()
  local rest = {}
  for at = 1, broad == '1' and #names or 0 do
    if not closed[at] and (ready[at] > 0 or due[at]) then rest[#rest + 1] = names[at] end
  end
  if committed then first_due = redis.call('ZRANGE', next_due, 0, 0, 'WITHSCORES') end
  return {now, first_due[2] or '', first_due[1] and not first_key[first_due[1]] and '1' or '0', first_score(leases), rank, peers, open_ms or '', next_look(), places, room, resumed, leased, long, micros, rest}
end

-- A claim that may have run before is known by its nonce; one that finds nothing to take need not ask.
if #looks == 0 and again == '0' then
  wait_for_more()
  return answer()
end

local last = redis.call('HGET', claims, worker) or ''
if cut(last, 1, 8) == nonce then
  -- The same claim again, its reply lost: the same leases again, whichever of the two came first.  They begin now, since
  -- the worker did not know of them until now.
  local members, ttr_of = {}, {}
  for member in string.gmatch(cut(last, 21), '[^\n]+') do members[#members + 1] = member end
  for at = 1, #names do ttr_of[names[at]] = ttr[at] end
  for _, job in ipairs(fetch(members)) do
    if job and job.state == RUNNING and job[NONCE] == nonce then
      local _, own_ttr = wishes(job)
      local runs_for = own_ttr > 0 and own_ttr or ttr_of[topic_of(job.member)]
      if again ~= '0' then
        job[STARTED] = now
        redis.call('HSET', jobs, job.member, write(job))
        redis.call('ZADD', leases, now + math.min(tonumber(lease_ms), runs_for + tonumber(grace_ms)), job.member)
      end
      local at = #leased
      leased[at + 1], leased[at + 2] = job.member, write(job)
      if job.apart then add_body(job.member) end
    end
  end
  -- Whoever cannot tell asks for jobs all the same, if there is nothing left of what it was given.
  if leased[1] or again ~= 'maybe' then return answer() end
end
-- Asked for what it was given only, or where there is nothing.
if #looks == 0 and again == 'maybe' then
  wait_for_more()
  return answer()
end
-- Sent before a claim of the same client that has been here already: nobody waits for the answer any more.
if cut(last, 9, 12) == client and decode(NUMBER, last, 13) > tonumber(claim_number) then return answer() end

local taken, taken_of, from_ready, names_taken = 0, {}, {}, {}
local lease_for, grace, until_of, share = tonumber(lease_ms), tonumber(grace_ms), {}, {}
for at = 1, #names do until_of[at] = now + math.min(lease_for, ttr[at] + grace) end
-- What this claim writes into every record: nonce, worker, started.
local claimed_by = nonce .. worker_id .. encode(NUMBER, now)

-- Where options begin in what every record ends with: due, revision, request, options, body.
local OPTIONS_IN_REST = 23
-- A run up to its token: `fresh` has those of jobs that never ran, by their mark, which are most.
local BEGUN, fresh = '>BHHBBI8c12', {}

local function begun(mark, attempts, crashes, marks)
  mark = mark - mark % 8 + RUNNING
  if attempts + crashes + marks > 0 then return encode(BEGUN, mark, attempts, crashes, 0, marks, 0, NOT_ENDED) end
  local begins = fresh[mark] or encode(BEGUN, mark, 0, 0, 0, 0, 0, NOT_ENDED)
  fresh[mark] = begins
  return begins
end

-- Whether a job that became ready at `due_ms` is in the part of another worker, for which that one has a moment.
local function is_for_others(position, due_ms)
  if slots[position] == 0 or due_ms <= now - SHARE_MS then return false end
  if not share[position] then
    local available = ready[position] + (from_ready[position] or 0)
    if due[position] then available = available + redis.call('ZCOUNT', due_of(names[position]), '-inf', now) end
    share[position] = served[position] and 0 or share_of(available, math.min(free[position], left), slots[position])
  end
  if (taken_of[position] or 0) < share[position] then return false end
  left_behind[position] = true
  open_ms = math.min(open_ms or math.huge, due_ms + SHARE_MS)
  return true
end

-- Lease a job to the worker if its body still fits into the answer; one always does.  `due` is '' where `rest` begins with it.
local function lease(member, position, mark, attempts, crashes, marks, due, rest)
  local size = #rest
  if mark >= 128 then size = redis.call('HSTRLEN', bodies, member) end
  if size > bytes and taken > 0 then
    bytes = 0
    return false
  end
  bytes = bytes - size
  local until_ms = until_of[position]
  if mark % 64 >= 32 then
    local _, own_ttr = decode(OPTIONS, rest, OPTIONS_IN_REST - #due)
    if own_ttr > 0 then until_ms = now + math.min(lease_for, own_ttr + grace) end
  end
  local at = 2 * taken + 1
  local record = begun(mark, attempts, crashes, marks) .. encode(NUMBER, take_numbers(1)) .. claimed_by .. due .. rest
  lease_scores[at], lease_scores[at + 1] = until_ms, member
  lease_count = at + 1
  leased[at], leased[at + 1] = member, record
  note('claimed', member, cut(record, 1, HEAD_BYTES))
  if mark >= 128 then add_body(member) end
  taken = taken + 1
  names_taken[taken] = member
  taken_of[position] = (taken_of[position] or 0) + 1
  free[position], left = free[position] - 1, left - 1
  return true
end

-- Whether the worker leaves a suspect to others: groups that crashed together are split in halves, each for another worker.
local function is_other_half(position, marks, due_ms)
  local its_half = marks % (2 * HALF) >= HALF and '1' or '0'
  if half == '' then half = its_half end
  if its_half == half or due_ms <= now - HALF_MS or (peers == 0 and slots[position] == 0) then return false end
  open_ms = math.min(open_ms or math.huge, due_ms + HALF_MS)
  return true
end

-- Entries that this claim has met, by stream: what it took leaves only in the end.
local met_upto = {}

-- The oldest that wait in a lane.  What is met here leaves it: it is leased, or its entry is outdated.
local function take_ready(position, lane, want)
  local topic, is_suspect = names[position], lane == SUSPECT
  local key = stream(topic, lane)
  local after = met_upto[key] and string.format('(%d-0', met_upto[key]) or '-'
  local found = redis.call('XRANGE', key, after, '+', 'COUNT', is_suspect and 2 * want or want)
  local members = {}
  for at = 1, #found do members[at] = found[at][2][2] end
  if not members[1] then
    -- What is scheduled keeps its lane in use: where lanes differ, who is due first need not be who starts first.
    if not met_upto[key] and (lane >= SUSPECT or (lane > 0 and redis.call('ZCARD', due_of(topic)) == 0)) then
      used[position] = string.gsub(used[position], lane, '')
      redis.call('HSET', topics, topic .. ':lanes', used[position])
    end
    return
  end
  local records = redis.call('HMGET', jobs, unpack(members))
  for at = 1, #records do
    local entry, member, record = number_of(found[at][1]), members[at], records[at]
    local mark, attempts, crashes, marks, its_entry, expires, stays, _ = 0, 0, 0, 0, 0, 0, false, nil
    if record and (#record < HEAD_BYTES or string.byte(record) % 64 >= 32) and not is_whole(record) then
      damage.put_aside(member, record)
      ready[position], record = ready[position] - 1, false
    end
    if record and string.byte(record) % 128 >= 64 then
      mark, attempts, crashes, _, marks, its_entry = decode(START, record)
      if mark % 64 >= 32 then expires = wishes_of(record, mark) end
    end
    if record and mark % 8 == READY and its_entry == entry then
      -- Asked only where somebody else might have it: it is the way of every job.
      local due_ms = (is_suspect or slots[position] > 0) and decode(NUMBER, record, DUE_AT) or 0
      if expires > 0 and expires < now then
        ages.expire(read(member, record), topic, now, tonumber(keep_ms))
      elseif is_suspect and is_other_half(position, marks, due_ms) then
        stays = true
      elseif left <= 0 or free[position] <= 0 or (not is_suspect and is_for_others(position, due_ms)) then
        return
      elseif lease(member, position, mark, attempts, crashes, marks, '', cut(record, DUE_AT)) then
        from_ready[position] = (from_ready[position] or 0) + 1
      else
        return
      end
      if not stays then ready[position] = ready[position] - 1 end
    end
    met_upto[key] = entry
    if is_suspect and not stays then
      drop_entry(topic, lane, entry)
    elseif not is_suspect then
      taken_upto[key] = entry
    end
  end
end

-- Chance decides whose turn it is, among those that have something: so nobody starves, and no two turns stay in step.
local chance = decode('>I4', nonce, 2)
local turn = #looks > 0 and chance % #looks or 0

-- The lanes of a topic in the order in which they are asked: by chance, each as likely as its weight says.
local function draw_lanes(position)
  if used[position] == '' then return {NORMAL} end
  local order, lanes_left = {}, {HIGH, NORMAL, LOW, CALLBACK}
  local weights, dice = {HIGH_WEIGHT, NORMAL_WEIGHT, LOW_WEIGHT, NORMAL_WEIGHT}, decode('>I3', nonce, 6)
  local total = HIGH_WEIGHT + NORMAL_WEIGHT + LOW_WEIGHT + NORMAL_WEIGHT
  while lanes_left[1] do
    local pick, at = dice % total, 1
    dice = floor(dice / total)
    while pick >= weights[at] do
      pick = pick - weights[at]
      at = at + 1
    end
    total = total - table.remove(weights, at)
    order[#order + 1] = table.remove(lanes_left, at)
  end
  return order
end

-- How many of some slots go to each lane that is used, as its weight says; what is left over is by chance, too.
local function split(position, slots_left)
  local quotas, total, sum, before = {}, 0, 0, 0
  local order = {{HIGH, HIGH_WEIGHT}, {NORMAL, NORMAL_WEIGHT}, {LOW, LOW_WEIGHT}, {CALLBACK, NORMAL_WEIGHT}}
  for _, each in ipairs(order) do
    if each[1] == NORMAL or find(used[position], each[1], 1, true) then total = total + each[2] end
  end
  for _, each in ipairs(order) do
    if each[1] == NORMAL or find(used[position], each[1], 1, true) then
      sum = sum + each[2]
      local upto = floor(sum * slots_left / total + chance / 4294967296)
      quotas[each[1]], before = upto - before, upto
    end
  end
  return quotas
end

local function uses(position, lane)
  return lane == NORMAL or find(used[position], lane, 1, true)
end

-- Jobs that crashed twice run isolated: many side by side where each gets a process of its own, else one on a worker that
-- runs nothing else.
local function take_isolated(position, put_off)
  if left > 0 and uses(position, ISOLATED) and is_mine(position, 0) then
    if processes[position] then
      local want = math.min(free[position], left, processes[position])
      if want > 0 then take_ready(position, ISOLATED, want) end
    elseif alone == '1' and put_off then
      return
    elseif alone == '1' then
      -- Beside those in processes of their own it would not be alone.
      if taken == 0 then take_ready(position, ISOLATED, 1) end
      if (taken_of[position] or 0) > 0 then
        left = 0
        if string.match(redis.call('HGET', meta, 'room') or '', '^%S+') == worker then redis.call('HDEL', meta, 'room') end
      end
    elseif redis.call('XLEN', stream(names[position], ISOLATED)) > 0 then
      local holder, until_ms = string.match(redis.call('HGET', meta, 'room') or '', '^(%S+) (%d+)$')
      if not holder or holder == worker or tonumber(until_ms) <= now then
        room = '1'
        redis.call('HSET', meta, 'room', worker .. ' ' .. (now + ROOM_MS))
      end
    end
  end
end

-- Whether there is anything beside jobs that have to run isolated: those must not make all others wait, so a worker that
-- may take either takes the one or the others by chance.
local function has_others()
  for _, position in ipairs(looks) do
    local isolated = uses(position, ISOLATED) and redis.call('XLEN', stream(names[position], ISOLATED)) or 0
    if due[position] or ready[position] > isolated then return true end
  end
  return false
end
-- A worker that ended what it ran to make room for one takes it.
local put_off = alone == '1' and chance % 2 == 1 and has_others()
  and string.match(redis.call('HGET', meta, 'room') or '', '^%S+') ~= worker
for _, position in ipairs(looks) do take_isolated(position, put_off) end

-- What is due goes to its stream; but where a slot is still free, nothing waits there, and it starts at once.
-- A claim that took its fill of ready jobs moves a few only, so that none keeps the server busy for two.
local moved = 0

-- The position of the topic whose due jobs are taken, and whether those beyond the free slots become ready now: where
-- other workers wait, and where lanes differ, since the index knows no lanes.
local at_position, moves_on

local function start_or_promote(member, topic, record, due_ms, mark)
  local position = at_position
  local mine = is_mine(position, mark)
  if mine and free[position] > 0 and left > 0 and bytes > 0 and not is_for_others(position, due_ms) then
    local attempts, crashes, marks, rest, _ = 0, 0, 0, nil, nil
    if mark % 128 >= 64 then
      mark, attempts, crashes, _, marks = decode(START, record)
      rest = cut(record, REVISION_AT)
    else
      -- Its first run: all that there is to keep is what follows the mark.
      mark, rest = mark + 64, cut(record, 2)
    end
    if crashes == 0 and lease(member, position, mark, attempts, crashes, marks, encode(NUMBER, due_ms), rest) then
      return true
    end
    mine = crashes == 0
  end
  if (mine and not moves_on) or moved >= MOVED_AT_ONCE then return false end
  promote(member, topic, record, due_ms, take_numbers(1))
  moved = moved + 1
  ready[position] = ready[position] + 1
  return true
end

local function take_due(position, quota)
  at_position, moves_on = position, used[position] ~= '' or slots[position] > 0
  local most = math.max(MOVED_AT_ONCE - taken - moved, MOVED_AT_LEAST)
  while most > 0 do
    local part = quota - (taken_of[position] or 0)
    local want = moves_on and most or math.min(most, free[position], left, part)
    if want <= 0 or (part <= 0 and not moves_on) then return end
    local found, stopped = for_each_due(names[position], now, want, tonumber(keep_ms), start_or_promote)
    most = most - found
    if found < want then
      due[position] = stopped
      return
    end
  end
end

local function take_all_ready(position, quota)
  local most = math.min(quota, free[position], left)
  if uses(position, SUSPECT) and is_mine(position, 0) then take_ready(position, SUSPECT, most) end
  local order = draw_lanes(position)
  local quotas = #order > 1 and split(position, most - (taken_of[position] or 0)) or {}
  -- Each lane its part first, then whatever one leaves to the others.
  for round = #order > 1 and 1 or 2, 2 do
    for _, lane in ipairs(order) do
      local want = math.min(most - (taken_of[position] or 0), free[position], left)
      if round == 1 then want = math.min(want, quotas[lane] or 0) end
      if want > 0 and bytes > 0 and is_mine(position, 8 * lane) and uses(position, lane) then
        take_ready(position, lane, want)
      end
    end
  end
end

-- Each topic its part of the slots first, then whatever one leaves to the others.  Not too small a part: with every topic
-- comes a handful of commands.
local parts = {math.ceil(left / math.max(1, math.min(#looks, TOPICS_SERVED))), left}
for round = 1, #looks > 1 and 2 or 1 do
  for step = 0, #looks - 1 do
    local position = looks[(turn + step) % #looks + 1]
    if free[position] > 0 and left > 0 and bytes > 0 then
      if ready[position] > 0 or (anyway and round == 1) then take_all_ready(position, parts[round]) end
      if due[position] then take_due(position, parts[round]) end
    end
  end
end

for _, position in ipairs(put_off and taken == 0 and looks or {}) do take_isolated(position) end

for position, number in pairs(taken_of) do
  local topic, waited = names[position], from_ready[position] or 0
  count(topic, RUNNING, number)
  count(topic, READY, -waited)
  count(topic, SCHEDULED, waited - number)
end
-- One that was sent before is noted also if it took nothing, so that its first sending takes nothing later.
if taken > 0 or again == '1' then
  redis.call('HSET', claims, worker, nonce .. client .. encode(NUMBER, tonumber(claim_number)) .. table.concat(names_taken, '\n'))
end
keep_all(leased, 2 * taken)
commit(now, nonce, worker)
committed = true
wait_for_more()

for position, topic in ipairs(names) do
  if called[topic] or (delivers == '1' and taken_of[position] and ready[position] > 0) then call_deliverers(topic) end
  if woken[topic] and ready[position] > 0 then
    wake(topic, ready[position])
  elseif not closed[position] and (taken_of[position] or left <= 0 or left_behind[position]) then
    -- A full worker passes on what it did not come to as well: the token that woke it may have been of that topic.
    local list = KEYS[first_key[topic] + WAKE]
    if ready[position] > 0 or due[position] then
      if redis.call('LLEN', list) == 0 then redis.call('LPUSH', list, '1') end
    elseif taken_of[position] then
      redis.call('DEL', list)
    end
  end
end
tell_broad(now)
return answer()
