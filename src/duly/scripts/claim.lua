#!lua flags=allow-oom
-- claim: promote what is due, then lease ready jobs of the named topics to a worker.
--
-- moves    scheduled -> ready; ready -> running; ready, too late to start -> cancelled
-- uses     clock records topics events lanes ending promotion timers
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
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the tokens and the event entry, 8 bytes
--          worker    its name, new with every start
--          number    of this claim, counted by the worker
--          again     '1' when this claim was sent before and its reply lost
--          lease_ms  how long the leases run
--          grace_ms  how far a lease may outlast the time to run
--          limit     at most this many jobs
--          max_bytes about this many bytes of bodies at most
--          suspects  '1' if the worker may take a job with a crash behind it
--          keep_ms   how long an expired job is kept
--          name      of the timer in this process, '' for none
--          role      leader, follower or auto
--          topic...  three for each topic: name, free slots, time to run of its handler
-- returns  {now_ms, next_due_ms, next_lease_ms, rank of the timer, topics due but not named,
--          {end of its last pause for each topic}, {member, record, body kept apart, ...}}
-- cost     O(limit * log n)

local now = clock(now_ms)
local names, free, ttr = {}, {}, {}
for at = topic_at, #ARGV, 3 do
  local position = #names + 1
  names[position], free[position], ttr[position] = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  name_topic(ARGV[at], position)
end

local function answer(leased, next_due, resumed, unnamed)
  local lease = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
  return {now, next_due or '', lease[2] or '', hold_timer(name, role, now), names_of(unnamed), resumed, leased}
end

local fields = {}
for _, topic in ipairs(names) do
  fields[#fields + 1] = topic .. ':ready'
  fields[#fields + 1] = topic .. ':paused'
  fields[#fields + 1] = topic .. ':resumed'
end
local about = redis.call('HMGET', topics, unpack(fields))
local ready, resumed = {}, {}
for at = 1, #names do
  ready[at] = tonumber(about[3 * at - 2]) or 0
  if about[3 * at - 1] then free[at] = 0 end
  resumed[at] = about[3 * at] or '0'
end

if again == '1' then
  local last = redis.call('HGET', claims, worker) or ''
  local its_number, list = string.match(last, '^(%d+)\n(.*)$')
  if its_number == number then
    local members, leased = {}, {}
    for member in string.gmatch(list, '[^\n]+') do members[#members + 1] = member end
    for _, job in ipairs(fetch(members)) do
      if job and job.state == RUNNING and job.nonce == nonce then
        leased[#leased + 1] = job.member
        leased[#leased + 1] = write(job)
        leased[#leased + 1] = job.apart and redis.call('HGET', bodies, job.member) or ''
      end
    end
    return answer(leased, '', resumed, {})
  end
end

local chosen = choose_due(now, 200)
move_due(chosen, now, tonumber(keep_ms))

local turn = tonumber(number)
local lane_order = turn % 8 == 7 and {2, 0, 1} or {1, 0, 2}
local left, bytes = tonumber(limit), tonumber(max_bytes)
local taken, taken_of, outdated = {}, {}, {}

local function read_stream(key, want)
  local found = redis.pcall('XREADGROUP', 'GROUP', GROUP, GROUP, 'COUNT', want, 'STREAMS', key, '>')
  if found and found.err then
    if not string.find(found.err, 'NOGROUP', 1, true) then error(found) end
    if redis.call('EXISTS', key) == 0 then return {} end
    -- From 0, or jobs that were ready before the first worker came would never be seen.
    redis.call('XGROUP', 'CREATE', key, GROUP, '0')
    found = redis.call('XREADGROUP', 'GROUP', GROUP, GROUP, 'COUNT', want, 'STREAMS', key, '>')
  end
  return found and found[1][2] or {}
end

-- Give back to the stream what was read beyond the byte limit: it is delivered again, in its order.
local function unread(key, found, from)
  local ids = {}
  for at = from, #found do ids[#ids + 1] = found[at][1] end
  redis.call('XACK', key, GROUP, unpack(ids))
  redis.call('XGROUP', 'SETID', key, GROUP, found[from - 1][1])
end

local function take(position, lane, want)
  local topic = names[position]
  local key = stream(topic, lane)
  local found = read_stream(key, want)
  if #found == 0 then return end
  local members = {}
  for at, entry in ipairs(found) do members[at] = entry[2][2] end
  for at, job in ipairs(fetch(members)) do
    local entry = tonumber(string.match(found[at][1], '^%d+'))
    if not job or job.state ~= READY or job.entry ~= entry then
      outdated[#outdated + 1] = true
      drop_entry(topic, lane, entry)
    elseif job.expires > 0 and job.expires < now then
      event('cancelled', job, job.attempts, job.due, '', '', '', 'expired')
      drop_entry(topic, lane, entry)
      finish(job, topic, CANCELLED, now, tonumber(keep_ms), '{"type":"expired"}')
      ready[position] = ready[position] - 1
    else
      local size = #job.body
      if job.apart then size = redis.call('HSTRLEN', bodies, job.member) end
      if size > bytes and #taken > 0 and at > 1 then
        unread(key, found, at)
        left = 0
        return
      end
      bytes = bytes - size
      job.topic, job.position = topic, position
      taken[#taken + 1] = job
      taken_of[position] = (taken_of[position] or 0) + 1
      free[position], left = free[position] - 1, left - 1
    end
  end
end

for position, topic in ipairs(names) do ready[position] = ready[position] + (woken[topic] or 0) end
for step = 0, #names - 1 do
  -- Each call begins with another topic, so that none starves.
  local position = (turn + step) % #names + 1
  -- Counters say where to look; now and then the streams are asked themselves.
  if free[position] > 0 and left > 0 and (ready[position] > 0 or turn % 8 == 0) then
    if suspects == '1' then
      local before = #taken
      take(position, SUSPECT, 1)
      if #taken > before then suspects = '0' end
    end
    for _, lane in ipairs(lane_order) do
      local want = math.min(free[position], left)
      if want > 0 then take(position, lane, want) end
    end
  end
end

local leased, scores = {}, {}
if #taken > 0 then
  local token = take_numbers(#taken)
  for at, job in ipairs(taken) do
    job.state, job.token, job.nonce, job.verb = RUNNING, token + at - 1, nonce, 0
    job.started, job.worker = now, worker
    local time_to_run = job.ttr > 0 and job.ttr or ttr[job.position]
    scores[#scores + 1] = now + math.min(tonumber(lease_ms), time_to_run + tonumber(grace_ms))
    scores[#scores + 1] = job.member
    event('claimed', job, job.attempts + 1, job.due, '', '', worker)
    count(job.topic, READY, -1)
    count(job.topic, RUNNING, 1)
  end
end
emit(now, nonce)

if #taken > 0 then
  redis.call('ZADD', leases, unpack(scores))
  local names_taken = {number}
  for at, job in ipairs(taken) do
    names_taken[at + 1] = job.member
    local record = write(job)
    puts[#puts + 1] = job.member
    puts[#puts + 1] = record
    leased[#leased + 1] = job.member
    leased[#leased + 1] = record
    leased[#leased + 1] = job.apart and redis.call('HGET', bodies, job.member) or ''
  end
  redis.call('HSET', claims, worker, table.concat(names_taken, '\n'))
end
write_records()
write_entries()
write_endings()
write_counts()

for position, topic in ipairs(names) do
  local behind = ready[position] - (taken_of[position] or 0)
  if woken[topic] and behind > 0 then
    wake(topic, behind)
  elseif taken_of[position] then
    local list = KEYS[first_key[topic] + WAKE]
    if behind <= 0 then
      redis.call('DEL', list)
    elseif redis.call('LLEN', list) == 0 then
      redis.call('LPUSH', list, '1')
    end
  end
end
return answer(leased, chosen.next_due, resumed, chosen.unnamed)
