-- changes: what a script has decided, collected first and written at the end by `commit`.
--
-- Lua is atomic, not transactional: nothing may fail after the first write.  So scripts decide, and
-- commit writes: the event first, then what adds, then what removes, so that a failure half-way
-- leaves a job in two places, which the auditor mends, and never in none.
--
-- Each topic named in a call brings eight keys: a stream for each of its lanes (normal, high, low, callback, suspect,
-- isolated), then its wake list, then `due`, the jobs of that topic that wait for their time.

local WAKE, DUE_SET, TOPIC_KEYS, WAKE_TOKENS, CALL_TOKENS = 6, 7, 8, 16, 1000
-- How the `about` of an event entry begins: when, rows and bytes up to and with it.
local TOTALS = '>I8I8I8'
-- How long after a wake-up the timers look whether anybody came: the worker that was woken may have died.
local CHECK_MS, WOKEN_KEPT, TIMERS_TOLD = 50, 1000, 200
local first_key
-- What every job adds to is kept from call to call, and only counted anew: a table that grows costs more than what is
-- written into it.
local puts, put_count = {}, 0
local lease_scores, lease_count = {}, 0
local freed, freed_count, done_scores, done_count = {}, 0, {}, 0
local due_topic, due_group, due_groups = nil, nil, {}
local reindexed = {}
local verb_rows, event_verbs = {}, {}
local row_verb, row_count, row_members, row_heads  -- of the verb that was noted last
local put_bodies, dropped_bodies, put_outcomes, dropped_outcomes = {}, {}, {}, {}
local dead_scores, undone, undead, unscheduled = {}, {}, {}, {}
local STATES = {[0] = 'scheduled', 'ready', 'running', 'succeeded', 'dead', 'cancelled'}
local taken_upto, woken, called = {}, {}, {}
local lined_up, lined_count, dropped_entries, used_lanes, counts = {}, 0, {}, {}, nil
local done_weight, dead_weight
local stops, endings = {}, {}

local function begin()
  first_key, counts, done_weight, dead_weight = {}, {}, 0, 0
  put_count, lease_count, freed_count, done_count, lined_count = 0, 0, 0, 0, 0
  if due_topic then due_topic, due_group, due_groups = nil, nil, {} end
  if next(reindexed) then unscheduled, reindexed = {}, {} end
  if put_bodies[1] then put_bodies = {} end
  if dropped_bodies[1] then dropped_bodies = {} end
  if put_outcomes[1] then put_outcomes = {} end
  if dropped_outcomes[1] then dropped_outcomes = {} end
  if next(dropped_entries) then dropped_entries = {} end
  if next(taken_upto) then taken_upto = {} end
  if next(woken) then woken = {} end
  if next(called) then called = {} end
  if next(used_lanes) then used_lanes = {} end
  if dead_scores[1] then dead_scores = {} end
  if undone[1] then undone = {} end
  if undead[1] then undead = {} end
  if stops[1] then stops = {} end
  if endings[1] then endings = {} end
  if answered[1] then answered = {} end
  if damage.records[1] then damage.records = {} end
  if event_verbs[1] then
    for _, verb in ipairs(event_verbs) do verb_rows[verb].size = 0 end
    event_verbs, row_verb = {}, nil
  end
end

-- Remember that a topic has jobs in a lane other than the normal one: a claim looks only into those that were used.
local function use_lane(topic, lane)
  if lane > 0 then
    local used = used_lanes[topic] or {}
    used_lanes[topic], used[lane] = used, true
  end
end

local function name_topic(topic, position)
  first_key[topic] = topics_at + TOPIC_KEYS * (position - 1)
end

local function stream(topic, lane)
  return KEYS[first_key[topic] + lane]
end

local function due_of(topic)
  return KEYS[first_key[topic] + DUE_SET]
end

-- When a scheduled job is due; nil where no index has it.
local function due_score(member)
  return tonumber(redis.call('ZSCORE', due_of(topic_of(member)), member))
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
  if row_verb then verb_rows[row_verb].size = row_count end
  local group = verb_rows[verb]
  if not group then
    group = {size = 0, members = {}, heads = {}}
    verb_rows[verb] = group
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
    local group = verb_rows[verb]
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

local function schedule(member, topic, due_ms)
  local group = due_group
  if topic ~= due_topic then
    group = due_groups[topic]
    if not group then
      group = {size = 0, earliest = due_ms, scores = {}}
      due_groups[topic] = group
    end
    due_topic, due_group = topic, group
  end
  local size, scores = group.size + 2, group.scores
  scores[size - 1], scores[size], group.size = due_ms, member, size
  if due_ms < group.earliest then group.earliest = due_ms end
end

-- Give a job that may be scheduled already another time: the one that it leaves may have been its topic's earliest.
local function move_due(member, topic, due_ms)
  reindexed[topic] = true
  schedule(member, topic, due_ms)
end

-- Take a job off the index of those that wait for their time.
local function unschedule(member, topic)
  reindexed[topic] = true
  local members = unscheduled[topic]
  if not members then
    members = {}
    unscheduled[topic] = members
  end
  members[#members + 1] = member
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
  use_lane(topic, lane)
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
  if redis.call('LLEN', key.callbacks) < CALL_TOKENS then redis.call('LPUSH', key.callbacks, topic) end
end

-- The rows of one verb, a line for each of their members and reasons.
local function rows_of(verb)
  local group = verb_rows[verb]
  local size, reasons = group.size, group.reasons
  if size == 1 then return 1, group.members[1], group.heads[1], reasons and reasons[1] or '' end
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
  redis.call('HSET', key.meta, 'trimmed', upto, 'trimmed_rows', at_rows, 'trimmed_bytes', at_bytes)
  return redis.call('XTRIM', key.events, 'MINID', string.format('%d-0', upto + 1)), at_rows, at_bytes
end

-- One packed entry per script call.  Ids are dense, `<counter>-0`; rows and bytes grow for ever, so that what
-- a trim removed is a subtraction.
local function emit(now_ms, nonce, worker)
  local verb = event_verbs[1]
  if not verb then return end
  verb_rows[row_verb].size = row_count
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
  redis.call('XADD', key.events, string.format('%d-0', counter), 'about', about, 'members', members, 'heads', heads,
    'reasons', reasons)
  redis.call('HSET', key.meta, 'sequence', string.format('%d', sequence), 'events', counter, 'event_rows', row_total, 'event_bytes', byte_total)
  sequence_was = sequence
  -- The bound is hard: it holds also where no pruner runs and whoever has not read yet.
  local rows_gone, bytes_gone = tonumber(shard[ROWS_GONE]) or 0, tonumber(shard[BYTES_GONE]) or 0
  local max_rows, max_bytes = tonumber(shard[MAX_ROWS]), tonumber(shard[MAX_BYTES])
  for _ = 1, 4 + size do
    if row_total - rows_gone <= max_rows and byte_total - bytes_gone <= max_bytes then return end
    local oldest = redis.call('XRANGE', key.events, '-', string.format('%d-0', counter - 1), 'COUNT', 4)
    if #oldest == 0 then return end
    local _, at_rows, at_bytes = trim(oldest, counter - 1)
    rows_gone, bytes_gone = at_rows, at_bytes
  end
end

-- Put a topic where its earliest job says; it leaves the index with its last one.
local function index_due(topic)
  local head = redis.call('ZRANGE', due_of(topic), 0, 0, 'WITHSCORES')[2]
  if head then
    redis.call('ZADD', key.next_due, head, topic)
  else
    redis.call('ZREM', key.next_due, topic)
  end
end

-- Sleepers read this stream from the last id they saw: no wake-up falls between look and sleep.  An entry says of which
-- topics the earliest due time changed, '<topic> <due_ms> ...', and when to see whether ready jobs are waited for in vain.
local function tell_timers(dues, check_ms)
  redis.call('XADD', key.timer, 'MAXLEN', '~', TIMERS_TOLD, '*', 'dues', table.concat(dues, ' '), 'check_ms', check_ms)
end

local function add_due()
  local sooner = {}
  for topic, group in pairs(due_groups) do
    redis.call('ZADD', due_of(topic), unpack(group.scores, 1, group.size))
    if redis.call('ZADD', key.next_due, 'LT', 'CH', group.earliest, topic) == 1 then
      sooner[#sooner + 1] = topic
      sooner[#sooner + 1] = group.earliest
    end
  end
  if sooner[1] then tell_timers(sooner, '') end
end

-- A topic whose last ready job went, or whose first one came, leaves or joins those that claims are told of.
local function count_ready(topic, change)
  local left = redis.call('HINCRBY', key.topics, topic .. ':ready', change)
  if change > 0 and left == change then
    redis.call('SADD', key.ready_topics, topic)
  elseif change < 0 and left <= 0 then
    redis.call('SREM', key.ready_topics, topic)
  end
end

-- The lanes that a topic uses, as digits: only what is new is written.
local function note_lanes(topic, used)
  local field = topic .. ':lanes'
  local was = redis.call('HGET', key.topics, field) or ''
  local now = ''
  for lane = 1, ISOLATED do
    if used[lane] or find(was, lane, 1, true) then now = now .. lane end
  end
  if now ~= was then redis.call('HSET', key.topics, field, now) end
end

-- Whether any job of a topic is counted in a state, with what this call has changed so far.
local function is_counted(topic, state)
  local change = counts[topic] and counts[topic][state] or 0
  return (tonumber(redis.call('HGET', key.topics, topic .. ':' .. STATES[state])) or 0) + change > 0
end

-- The state that a damaged job is counted in.  Its record cannot tell, but the index does that it stands in; one that stands
-- in none is in line.  Nil where neither is known: then the auditor's next pass counts.
function damage.counted_as(member, record)
  local topic, state = topic_of(member), nil
  if redis.call('ZSCORE', key.leases, member) then
    state = RUNNING
  elseif redis.call('ZSCORE', key.dead, member) then
    state = DEAD
  elseif redis.call('ZSCORE', key.done, member) then
    -- Both stand here: the first byte tells them apart, unless that is what is damaged.
    state = (string.byte(record) or SUCCEEDED) % 8 == CANCELLED and CANCELLED or SUCCEEDED
    if not is_counted(topic, state) then state = SUCCEEDED + CANCELLED - state end
  elseif first_key[topic] then
    state = due_score(member) and SCHEDULED or READY
  end
  return state and is_counted(topic, state) and state or nil
end

-- Move damaged records to where they stop nobody, before anything is written: this call may accept a job in the place of one.
local function quarantine_damaged(damaged)
  redis.call('HSET', key.quarantine, unpack(damaged))
  for at = 1, #damaged, 2 do
    local member, record = damaged[at], damaged[at + 1]
    local topic, state = topic_of(member), damage.counted_as(member, record)
    -- A call may meet one twice.
    if redis.call('HDEL', key.jobs, member) == 1 and state then
      count(topic, state, -1)
      if state > RUNNING then
        -- Only about what it weighed: how long its record was is not known any more.
        local weight = 2 * #member + #record + redis.call('HSTRLEN', key.outcomes, member) + 150
        if state == DEAD then dead_weight = dead_weight - weight else done_weight = done_weight - weight end
      end
    end
    for _, hash in ipairs({key.outcomes, key.progress}) do redis.call('HDEL', hash, member) end
    for _, index in ipairs({key.leases, key.done, key.dead}) do redis.call('ZREM', index, member) end
    if first_key[topic] and redis.call('ZREM', due_of(topic), member) == 1 then reindexed[topic] = true end
  end
end

local function commit(now_ms, nonce, worker)
  local damaged = damage.records
  for at = 1, #damaged, 2 do note('quarantined', damaged[at], NO_RECORD .. encode(NUMBER, now_ms)) end
  emit(now_ms, nonce, worker)
  if sequence ~= sequence_was then redis.call('HSET', key.meta, 'sequence', string.format('%d', sequence)) end
  if damaged[1] then quarantine_damaged(damaged) end
  if put_count > 0 then redis.call('HSET', key.jobs, unpack(puts, 1, put_count)) end
  if #put_bodies > 0 then redis.call('HSET', key.bodies, unpack(put_bodies)) end
  if #put_outcomes > 0 then redis.call('HSET', key.outcomes, unpack(put_outcomes)) end
  if #answered > 0 then
    for name in pairs(write_replies()) do endings[#endings + 1] = name end
  end
  for at = 1, lined_count, 3 do
    redis.call('XADD', lined_up[at], string.format('%d-0', lined_up[at + 1]), 'job', lined_up[at + 2])
  end
  if due_topic then add_due() end
  if lease_count > 0 then redis.call('ZADD', key.leases, unpack(lease_scores, 1, lease_count)) end
  if done_count > 0 then redis.call('ZADD', key.done, unpack(done_scores, 1, done_count)) end
  if #dead_scores > 0 then redis.call('ZADD', key.dead, unpack(dead_scores)) end

  for topic, members in pairs(unscheduled) do
    redis.call('ZREM', due_of(topic), unpack(members))
  end
  for topic in pairs(reindexed) do index_due(topic) end
  if freed_count > 0 then
    redis.call('ZREM', key.leases, unpack(freed, 1, freed_count))
    -- Hardly anybody reports progress: one question instead of a name for each job.
    if redis.call('EXISTS', key.progress) == 1 then redis.call('HDEL', key.progress, unpack(freed, 1, freed_count)) end
  end
  if #undone > 0 then redis.call('ZREM', key.done, unpack(undone)) end
  if #undead > 0 then redis.call('ZREM', key.dead, unpack(undead)) end
  for key, ids in pairs(dropped_entries) do
    redis.call('XDEL', key, unpack(ids))
  end
  for key, last in pairs(taken_upto) do
    redis.call('XTRIM', key, 'MINID', string.format('%d-0', last + 1))
  end
  if #dropped_bodies > 0 then redis.call('HDEL', key.bodies, unpack(dropped_bodies)) end
  if #dropped_outcomes > 0 then redis.call('HDEL', key.outcomes, unpack(dropped_outcomes)) end

  for topic, of_topic in pairs(counts) do
    for state = SCHEDULED, CANCELLED do
      if of_topic[state] ~= 0 then
        if state == READY then
          count_ready(topic, of_topic[state])
        else
          redis.call('HINCRBY', key.topics, topic .. ':' .. STATES[state], of_topic[state])
        end
      end
    end
  end
  for topic, used in pairs(used_lanes) do note_lanes(topic, used) end
  if done_weight ~= 0 then redis.call('HINCRBY', key.meta, 'done_bytes', done_weight) end
  if dead_weight ~= 0 then redis.call('HINCRBY', key.meta, 'dead_bytes', dead_weight) end
  -- Only hints: who misses one looks again.  A user without the right to publish must not undo what is written.
  for _, message in ipairs(stops) do redis.pcall('PUBLISH', key.stop, message) end
  for _, member in ipairs(endings) do redis.pcall('PUBLISH', key.ended_channel, member) end
end

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end

-- Tell workers with many topics, which cannot listen to each of them, which ones have work.
local function tell_broad(now_ms)
  if (next(woken) or next(called)) and (tonumber(shard[BROAD]) or 0) > now_ms then
    local names = names_of(woken)
    for topic in pairs(called) do names[#names + 1] = topic end
    redis.call('XADD', key.woken_topics, 'MAXLEN', '~', WOKEN_KEPT, '*', 'topics', table.concat(names, ' '))
  end
end

-- Have the timers look, a little later, whether anybody has come for what was made ready.
local function check_later(now_ms)
  if next(woken) and now_ms - (tonumber(shard[CHECKED]) or 0) >= CHECK_MS then
    redis.call('HSET', key.meta, 'checked', now_ms)
    tell_timers({}, now_ms + CHECK_MS)
  end
end

local function wake_topics(now_ms)
  for topic, moved in pairs(woken) do wake(topic, moved) end
  for topic in pairs(called) do call_deliverers(topic) end
  tell_broad(now_ms)
  check_later(now_ms)
end

local function first_score(index)
  return redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2] or ''
end
