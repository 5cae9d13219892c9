-- changes: what a script has decided, collected first and written at the end by `commit`.
--
-- Lua is atomic, not transactional: nothing may fail after the first write.  So scripts decide, and
-- commit writes: the event first, then what adds, then what removes, so that a failure half-way
-- leaves a job in two places, which the auditor mends, and never in none.
--
-- Each topic named in a call brings seven keys, in the order of its lanes: normal, high, low, callback, suspect, then wake,
-- then callbacks, which all topics share.

local WAKE, CALLBACKS, READERS, WAKE_TOKENS, CALL_TOKENS = 5, 6, 'duly', 16, 1000
local TOTALS = '>I8I8I8'  -- how the `about` of an event entry begins: when, rows and bytes up to and with it
local first_key
local put_count, lined_count
local puts, put_bodies, dropped_bodies, put_outcomes, dropped_outcomes, dropped_progress = {}, {}, {}, {}, {}, {}
local due_scores, unscheduled, earliest = {}, {}, nil
local lease_scores, freed = {}, {}
local lined_up, dropped_entries, woken, called = {}, {}, {}, {}
local done_scores, dead_scores, undone, undead = {}, {}, {}, {}
local counts, done_weight, dead_weight
local stops, endings = {}, {}
local event_verbs, event_rows = {}, {}

local function begin()
  first_key, put_count, lined_count, earliest, counts, done_weight, dead_weight = {}, 0, 0, nil, {}, 0, 0
  if puts[1] then puts = {} end
  if put_bodies[1] then put_bodies = {} end
  if dropped_bodies[1] then dropped_bodies = {} end
  if put_outcomes[1] then put_outcomes = {} end
  if dropped_outcomes[1] then dropped_outcomes = {} end
  if dropped_progress[1] then dropped_progress = {} end
  if due_scores[1] then due_scores = {} end
  if unscheduled[1] then unscheduled = {} end
  if lease_scores[1] then lease_scores = {} end
  if freed[1] then freed = {} end
  if lined_up[1] then lined_up = {} end
  if next(dropped_entries) then dropped_entries = {} end
  if next(woken) then woken = {} end
  if next(called) then called = {} end
  if done_scores[1] then done_scores = {} end
  if dead_scores[1] then dead_scores = {} end
  if undone[1] then undone = {} end
  if undead[1] then undead = {} end
  if stops[1] then stops = {} end
  if endings[1] then endings = {} end
  if answered[1] then answered = {} end
  if event_verbs[1] then event_verbs, event_rows = {}, {} end
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

-- One row of the event entry: the head of the record as it stands after the verb; see head_of.
local function note(verb, member, head, reason)
  local group = event_rows[verb]
  if not group then
    group = {size = 0, members = {}, heads = {}, reasons = false}
    event_rows[verb] = group
    event_verbs[#event_verbs + 1] = verb
  end
  local size = group.size + 1
  group.size, group.members[size], group.heads[size] = size, member, head
  if reason then
    group.reasons = group.reasons or {}
    -- A line break in a reason would make the whole entry unreadable.
    group.reasons[size] = string.gsub(reason, '%c', ' ')
  end
end

local function event(verb, member, record, reason, due_ms)
  note(verb, member, head_of(record, due_ms), reason)
end

local function store(member, record)
  put_count = put_count + 2
  puts[put_count - 1], puts[put_count] = member, record
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
  due_scores[#due_scores + 1] = due_ms
  due_scores[#due_scores + 1] = member
  if not earliest or due_ms < earliest then earliest = due_ms end
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

-- Take the entry of a job off its stream, in the same script that stores the outcome.
local function drop_entry(topic, lane, entry)
  if entry == 0 then return end
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

-- Reasons of the rows of one verb, a line for each.
local function reasons_of(group)
  if not group.reasons then return string.rep('\n', group.size - 1) end
  for row = 1, group.size do group.reasons[row] = group.reasons[row] or '' end
  return table.concat(group.reasons, '\n')
end

-- Remove the oldest entries, up to and including the one with counter `last` at most; keep the newest.
local function trim(oldest, last)
  local upto, at_rows, at_bytes, _
  for _, entry in ipairs(oldest) do
    local counter = tonumber(string.match(entry[1], '^%d+'))
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
  local group = event_rows[verb]
  local size, verbs = group.size, string.format('%s %d', verb, group.size)
  local members, heads = table.concat(group.members, '\n'), table.concat(group.heads)
  local reasons = reasons_of(group)
  for at = 2, #event_verbs do
    group = event_rows[event_verbs[at]]
    size, verbs = size + group.size, string.format('%s %s %d', verbs, event_verbs[at], group.size)
    members, heads = members .. '\n' .. table.concat(group.members, '\n'), heads .. table.concat(group.heads)
    reasons = reasons .. '\n' .. reasons_of(group)
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
  if #due_scores == 0 then return end
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  redis.call('ZADD', due, unpack(due_scores))
  -- Sleepers read this stream from the last id they saw: no wake-up falls between look and sleep.
  if not head[2] or earliest < tonumber(head[2]) then
    redis.call('XADD', timer, 'MAXLEN', 1, '*', 'due_ms', earliest)
  end
end

local function commit(now_ms, nonce, worker)
  emit(now_ms, nonce, worker)
  if sequence ~= sequence_was then redis.call('HSET', meta, 'sequence', sequence) end
  if #puts > 0 then redis.call('HSET', jobs, unpack(puts)) end
  if #put_bodies > 0 then redis.call('HSET', bodies, unpack(put_bodies)) end
  if #put_outcomes > 0 then redis.call('HSET', outcomes, unpack(put_outcomes)) end
  if #answered > 0 then
    for name in pairs(write_replies()) do endings[#endings + 1] = name end
  end
  for at = 1, #lined_up, 3 do
    redis.call('XADD', lined_up[at], string.format('%d-0', lined_up[at + 1]), 'job', lined_up[at + 2])
  end
  add_due()
  if #lease_scores > 0 then redis.call('ZADD', leases, unpack(lease_scores)) end
  if #done_scores > 0 then redis.call('ZADD', done, unpack(done_scores)) end
  if #dead_scores > 0 then redis.call('ZADD', dead, unpack(dead_scores)) end

  if #unscheduled > 0 then redis.call('ZREM', due, unpack(unscheduled)) end
  if #freed > 0 then redis.call('ZREM', leases, unpack(freed)) end
  if #undone > 0 then redis.call('ZREM', done, unpack(undone)) end
  if #undead > 0 then redis.call('ZREM', dead, unpack(undead)) end
  for key, ids in pairs(dropped_entries) do
    redis.call('XDEL', key, unpack(ids))
  end
  if #dropped_bodies > 0 then redis.call('HDEL', bodies, unpack(dropped_bodies)) end
  if #dropped_outcomes > 0 then redis.call('HDEL', outcomes, unpack(dropped_outcomes)) end
  -- Hardly anybody reports progress: one question instead of a name for each job.
  if #dropped_progress > 0 and redis.call('EXISTS', progress) == 1 then redis.call('HDEL', progress, unpack(dropped_progress)) end

  for topic, of_topic in pairs(counts) do
    for state = SCHEDULED, CANCELLED do
      if of_topic[state] ~= 0 then redis.call('HINCRBY', topics, topic .. ':' .. STATES[state], of_topic[state]) end
    end
  end
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
