-- changes: what a script has decided, collected first and written at the end by `commit`.
--
-- Lua is atomic, not transactional: nothing may fail after the first write.  So scripts decide, and
-- commit writes: the event first, then what adds, then what removes, so that a failure half-way
-- leaves a job in two places, which the auditor mends, and never in none.
--
-- Each topic named in a call brings seven keys, in the order of its lanes: normal, high, low, callback, suspect, then wake,
-- then callbacks, which all topics share.

local WAKE, CALLBACKS, WAKE_TOKENS, CALL_TOKENS = 5, 6, 16, 1000
local TOTALS = '>I8I8I8'  -- how the `about` of an event entry begins: when, rows and bytes up to and with it
local first_key
-- What every job adds to is kept from call to call, and only counted anew: a table that grows costs more than what is
-- written into it.
local puts, put_count, due_scores, due_count, earliest = {}, 0, {}, 0, nil
local lease_scores, lease_count, freed, freed_count, done_scores, done_count = {}, 0, {}, 0, {}, 0
local event_rows, event_verbs = {}, {}
local row_verb, row_count, row_members, row_heads  -- of the verb that was noted last
local put_bodies, dropped_bodies, put_outcomes, dropped_outcomes = {}, {}, {}, {}
local unscheduled, dead_scores, undone, undead = {}, {}, {}, {}
local lined_up, lined_count, dropped_entries, taken_upto, woken, called, lanes = {}, 0, {}, {}, {}, {}, {}
local counts, done_weight, dead_weight
local stops, endings = {}, {}

local function begin()
  first_key, earliest, counts, done_weight, dead_weight = {}, nil, {}, 0, 0
  put_count, due_count, lease_count, freed_count, done_count, lined_count = 0, 0, 0, 0, 0, 0
  if put_bodies[1] then put_bodies = {} end
  if dropped_bodies[1] then dropped_bodies = {} end
  if put_outcomes[1] then put_outcomes = {} end
  if dropped_outcomes[1] then dropped_outcomes = {} end
  if unscheduled[1] then unscheduled = {} end
  if next(dropped_entries) then dropped_entries = {} end
  if next(taken_upto) then taken_upto = {} end
  if next(woken) then woken = {} end
  if next(called) then called = {} end
  if next(lanes) then lanes = {} end
  if dead_scores[1] then dead_scores = {} end
  if undone[1] then undone = {} end
  if undead[1] then undead = {} end
  if stops[1] then stops = {} end
  if endings[1] then endings = {} end
  if answered[1] then answered = {} end
  if event_verbs[1] then
    for _, verb in ipairs(event_verbs) do event_rows[verb].size = 0 end
    event_verbs, row_verb = {}, nil
  end
end

-- Remember that a topic has jobs in other lanes than the normal one: see claim.
local function use_lane(topic, lane)
  if lane > 0 then lanes[topic] = true end
end

local function name_topic(topic, position)
  first_key[topic] = lanes_at + 7 * (position - 1)
end

local function stream(topic, lane)
  return KEYS[first_key[topic] + lane]
end

local function count(topic, state, change)
  local of_topic = counts[topic]
  if not of_topic then
    of_topic = {[0] = 0, 0, 0, 0, 0, 0}
    counts[topic] = of_topic
  end
  of_topic[state] = of_topic[state] + change
end

-- The rows that follow are of this verb.
local function begin_rows(verb)
  if row_verb then event_rows[row_verb].size = row_count end
  local group = event_rows[verb]
  if not group then
    group = {size = 0, members = {}, heads = {}}
    event_rows[verb] = group
  end
  if group.size == 0 then
    event_verbs[#event_verbs + 1] = verb
    group.reasons = nil
  end
  row_verb, row_count, row_members, row_heads = verb, group.size, group.members, group.heads
end

-- One row of the event entry: the head of the record as it stands after the verb; see head_of.
local function note(verb, member, head, reason)
  if verb ~= row_verb then begin_rows(verb) end
  row_count = row_count + 1
  row_members[row_count], row_heads[row_count] = member, head
  if reason then
    local group = event_rows[verb]
    group.reasons = group.reasons or {}
    -- A line break in a reason would make the whole entry unreadable.
    group.reasons[row_count] = string.gsub(reason, '%c', ' ')
  end
end

local function event(verb, member, record, reason, due_ms)
  note(verb, member, head_of(record, due_ms), reason)
end

local function store(member, record)
  put_count = put_count + 2
  puts[put_count - 1], puts[put_count] = member, record
end

-- Store members and records as they stand in a table, which is given away.
local function keep_all(table, size)
  if put_count == 0 then
    puts, put_count = table, size
  else
    for at = 1, size, 2 do store(table[at], table[at + 1]) end
  end
end

-- Store a record and say what happened to it; `due_ms` for one that waits for its first run.
local function keep(verb, member, record, reason, due_ms)
  store(member, record)
  note(verb, member, head_of(record, due_ms), reason)
  return record
end

local function put(verb, job, reason)
  return keep(verb, job.member, write(job), reason, job[DUE])
end

local function schedule(member, due_ms)
  due_count = due_count + 2
  due_scores[due_count - 1], due_scores[due_count] = due_ms, member
  if not earliest or due_ms < earliest then earliest = due_ms end
end

-- Keep a job that has succeeded: `let_go`, `store` and `keep_done` in one, because every job comes this way.
local function close(member, record, until_ms)
  freed_count, put_count, done_count = freed_count + 1, put_count + 2, done_count + 2
  freed[freed_count], puts[put_count - 1], puts[put_count] = member, member, record
  done_scores[done_count - 1], done_scores[done_count] = until_ms, member
end

-- Take the lease of a job that runs no longer, and what it said of its progress.
local function let_go(member)
  freed_count = freed_count + 1
  freed[freed_count] = member
end

local function keep_done(member, until_ms)
  done_count = done_count + 2
  done_scores[done_count - 1], done_scores[done_count] = until_ms, member
end

-- Put a member on a stream under a number of its own.  The record keeps that number: any other entry is outdated.
local function line_up(member, topic, lane, entry)
  local at = lined_count
  lined_up[at + 1], lined_up[at + 2], lined_up[at + 3] = stream(topic, lane), entry, member
  lined_count = at + 3
  if lane == CALLBACK then
    called[topic] = true
  else
    woken[topic] = (woken[topic] or 0) + 1
  end
end

-- Take the entry of a job that waits off its stream.
local function drop_entry(topic, lane, entry)
  local key = stream(topic, lane)
  local ids = dropped_entries[key]
  if not ids then
    ids = {}
    dropped_entries[key] = ids
  end
  ids[#ids + 1] = string.format('%d-0', entry)
end

-- One token for each job, so that no more workers wake than there is work.
local function wake(topic, moved)
  local list = KEYS[first_key[topic] + WAKE]
  local tokens = math.min(moved, WAKE_TOKENS - redis.call('LLEN', list))
  if tokens <= 0 then return end
  local values = {}
  for at = 1, tokens do values[at] = '1' end
  redis.call('LPUSH', list, unpack(values))
end

-- Deliverers take callbacks of whatever topic, so their tokens are names of topics.
local function call_deliverers(topic)
  local list = KEYS[first_key[topic] + CALLBACKS]
  if redis.call('LLEN', list) < CALL_TOKENS then redis.call('LPUSH', list, topic) end
end

-- The rows of one verb, a line for each of their members and reasons.
local function rows_of(verb)
  local group = event_rows[verb]
  local size, reasons = group.size, group.reasons
  if reasons then
    for row = 1, size do reasons[row] = reasons[row] or '' end
    reasons = table.concat(reasons, '\n', 1, size)
  else
    reasons = string.rep('\n', size - 1)
  end
  return size, table.concat(group.members, '\n', 1, size), table.concat(group.heads, '', 1, size), reasons
end

-- Remove the oldest entries, up to and including the one with counter `last` at most; keep the newest.
local function trim(oldest, last)
  local upto, at_rows, at_bytes, _
  for _, entry in ipairs(oldest) do
    local counter = number_of(entry[1])
    if counter > last then break end
    upto = counter
    _, at_rows, at_bytes = decode(TOTALS, entry[2][2])
  end
  if not upto then return 0 end
  redis.call('HSET', meta, 'trimmed', upto, 'trimmed_rows', at_rows, 'trimmed_bytes', at_bytes)
  return redis.call('XTRIM', events, 'MINID', string.format('%d-0', upto + 1)), at_rows, at_bytes
end

-- One packed entry per script call.  Ids are dense, `<counter>-0`; rows and bytes grow for ever, so that what
-- a trim removed is a subtraction.
local function emit(now_ms, nonce, worker)
  local verb = event_verbs[1]
  if not verb then return end
  event_rows[row_verb].size = row_count
  local size, members, heads, reasons = rows_of(verb)
  local verbs = string.format('%s %d', verb, size)
  for at = 2, #event_verbs do
    local more, its_members, its_heads, its_reasons = rows_of(event_verbs[at])
    size, verbs = size + more, string.format('%s %s %d', verbs, event_verbs[at], more)
    members, heads, reasons = members .. '\n' .. its_members, heads .. its_heads, reasons .. '\n' .. its_reasons
  end
  local counter = (tonumber(shard[COUNTER]) or 0) + 1
  local row_total = (tonumber(shard[ROWS]) or 0) + size
  local byte_total = (tonumber(shard[BYTES]) or 0) + #members + #heads + size + 120
  local about = encode(TOTALS, now_ms, row_total, byte_total) .. nonce .. shard[EPOCH] .. '\n' .. verbs .. '\n' .. (worker or '')
  redis.call('XADD', events, string.format('%d-0', counter), 'about', about, 'members', members, 'heads', heads,
    'reasons', reasons)
  redis.call('HSET', meta, 'sequence', sequence, 'events', counter, 'event_rows', row_total, 'event_bytes', byte_total)
  sequence_was = sequence
  -- The bound is hard: it holds also where no pruner runs and whoever has not read yet.
  local rows_gone, bytes_gone = tonumber(shard[ROWS_GONE]) or 0, tonumber(shard[BYTES_GONE]) or 0
  local max_rows, max_bytes = tonumber(shard[MAX_ROWS]), tonumber(shard[MAX_BYTES])
  for _ = 1, 4 + size do
    if row_total - rows_gone <= max_rows and byte_total - bytes_gone <= max_bytes then return end
    local oldest = redis.call('XRANGE', events, '-', string.format('%d-0', counter - 1), 'COUNT', 4)
    if #oldest == 0 then return end
    local _, at_rows, at_bytes = trim(oldest, counter - 1)
    rows_gone, bytes_gone = at_rows, at_bytes
  end
end

local function add_due()
  if due_count == 0 then return end
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  redis.call('ZADD', due, unpack(due_scores, 1, due_count))
  -- Sleepers read this stream from the last id they saw: no wake-up falls between look and sleep.
  if not head[2] or earliest < tonumber(head[2]) then
    redis.call('XADD', timer, 'MAXLEN', 1, '*', 'due_ms', earliest)
  end
end

local function commit(now_ms, nonce, worker)
  emit(now_ms, nonce, worker)
  if sequence ~= sequence_was then redis.call('HSET', meta, 'sequence', sequence) end
  if put_count > 0 then redis.call('HSET', jobs, unpack(puts, 1, put_count)) end
  if #put_bodies > 0 then redis.call('HSET', bodies, unpack(put_bodies)) end
  if #put_outcomes > 0 then redis.call('HSET', outcomes, unpack(put_outcomes)) end
  if #answered > 0 then
    for name in pairs(write_replies()) do endings[#endings + 1] = name end
  end
  for at = 1, lined_count, 3 do
    redis.call('XADD', lined_up[at], string.format('%d-0', lined_up[at + 1]), 'job', lined_up[at + 2])
  end
  add_due()
  if lease_count > 0 then redis.call('ZADD', leases, unpack(lease_scores, 1, lease_count)) end
  if done_count > 0 then redis.call('ZADD', done, unpack(done_scores, 1, done_count)) end
  if #dead_scores > 0 then redis.call('ZADD', dead, unpack(dead_scores)) end

  if #unscheduled > 0 then redis.call('ZREM', due, unpack(unscheduled)) end
  if freed_count > 0 then
    redis.call('ZREM', leases, unpack(freed, 1, freed_count))
    -- Hardly anybody reports progress: one question instead of a name for each job.
    if redis.call('EXISTS', progress) == 1 then redis.call('HDEL', progress, unpack(freed, 1, freed_count)) end
  end
  if #undone > 0 then redis.call('ZREM', done, unpack(undone)) end
  if #undead > 0 then redis.call('ZREM', dead, unpack(undead)) end
  for key, ids in pairs(dropped_entries) do
    redis.call('XDEL', key, unpack(ids))
  end
  for key, last in pairs(taken_upto) do
    redis.call('XTRIM', key, 'MINID', string.format('%d-0', last + 1))
  end
  if #dropped_bodies > 0 then redis.call('HDEL', bodies, unpack(dropped_bodies)) end
  if #dropped_outcomes > 0 then redis.call('HDEL', outcomes, unpack(dropped_outcomes)) end

  for topic, of_topic in pairs(counts) do
    for state = SCHEDULED, CANCELLED do
      if of_topic[state] ~= 0 then redis.call('HINCRBY', topics, topic .. ':' .. STATES[state], of_topic[state]) end
    end
  end
  for topic in pairs(lanes) do redis.call('HSET', topics, topic .. ':lanes', 1) end
  if done_weight ~= 0 then redis.call('HINCRBY', meta, 'done_bytes', done_weight) end
  if dead_weight ~= 0 then redis.call('HINCRBY', meta, 'dead_bytes', dead_weight) end
  -- Only hints: who misses one looks again.  A user without the right to publish must not undo what is written.
  for _, message in ipairs(stops) do redis.pcall('PUBLISH', stop, message) end
  for _, member in ipairs(endings) do redis.pcall('PUBLISH', ended_channel, member) end
end

local function wake_topics()
  for topic, moved in pairs(woken) do wake(topic, moved) end
  for topic in pairs(called) do call_deliverers(topic) end
end

local function first_score(index)
  return redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2] or ''
end

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end
