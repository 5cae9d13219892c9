-- ending: a job reaches a state that is final for its revision.

local VERBS = {ack = 1, retry = 2, bury = 3, release = 4, recover = 5}
local STUB_MS = 60000

local finished, weights, dropped_bodies, outcome_puts, outcome_drops, progress_drops, ended = {}, {}, {}, {}, {}, {}, {}

local function index_of(state)
  if state == DEAD then return dead end
  return done
end

-- What an ended job weighs against the byte limits: what it stores, and about what the indexes add.
local function weigh(job, record, outcome)
  local apart = 0
  if job.apart and not has_mark(job, BODY_DROPPED) then apart = redis.call('HSTRLEN', bodies, job.member) end
  return 2 * #job.member + #record + apart + #outcome + 150
end

local function weigh_in(state, bytes)
  local field = state == DEAD and 'dead_bytes' or 'done_bytes'
  weights[field] = (weights[field] or 0) + bytes
end

-- `keep_ms` is for jobs without a wish of their own; the dead are kept for their reader, whatever the wish.
local function finish(job, topic, state, now_ms, keep_ms, outcome)
  count(topic, job.state, -1)
  count(topic, state, 1)
  job.state, job.ended, job.entry = state, now_ms, 0
  if not job.due then job.due = now_ms end
  if state ~= DEAD and job.retain ~= UNKNOWN then keep_ms = job.retain * 1000 end
  if keep_ms < STUB_MS and state ~= DEAD then
    -- A stub stays, so that a call repeated after a lost reply gets its first answer.
    keep_ms, outcome, job.body = STUB_MS, '', ''
    if job.apart then dropped_bodies[#dropped_bodies + 1] = job.member end
    job.marks = bit.bor(job.marks, BODY_DROPPED)
  end
  if outcome ~= '' then
    outcome_puts[#outcome_puts + 1] = job.member
    outcome_puts[#outcome_puts + 1] = outcome
  elseif job.attempts > 1 or job.crashes > 0 then
    outcome_drops[#outcome_drops + 1] = job.member
  end
  if has_mark(job, AWAITED) then ended[#ended + 1] = job.member end
  local record = write(job)
  puts[#puts + 1] = job.member
  puts[#puts + 1] = record
  weigh_in(state, weigh(job, record, outcome))
  local index = index_of(state)
  local scored = finished[index]
  if not scored then
    scored = {}
    finished[index] = scored
  end
  scored[#scored + 1] = now_ms + keep_ms
  scored[#scored + 1] = job.member
  progress_drops[#progress_drops + 1] = job.member
end

-- An ended job comes back to life: off the indexes, its outcome forgotten.
local function revive(job, topic)
  local outcome = redis.call('HGET', outcomes, job.member) or ''
  weigh_in(job.state, -weigh(job, write(job), outcome))
  redis.call('ZREM', index_of(job.state), job.member)
  outcome_drops[#outcome_drops + 1] = job.member
  count(topic, job.state, -1)
end

local function write_endings()
  for index, scored in pairs(finished) do redis.call('ZADD', index, unpack(scored)) end
  for field, bytes in pairs(weights) do redis.call('HINCRBY', meta, field, bytes) end
  if #outcome_drops > 0 then redis.call('HDEL', outcomes, unpack(outcome_drops)) end
  if #outcome_puts > 0 then redis.call('HSET', outcomes, unpack(outcome_puts)) end
  if #dropped_bodies > 0 then redis.call('HDEL', bodies, unpack(dropped_bodies)) end
  if #progress_drops > 0 then redis.call('HDEL', progress, unpack(progress_drops)) end
  for _, member in ipairs(ended) do redis.call('PUBLISH', ended_channel, member) end
end

-- The job of a lease, or the word that says why not.  The same verb with the same token again is 'ok'.
local function held(job, token, nonce, verb)
  if not job then return nil, 'gone' end
  if job.token ~= token or job.nonce ~= nonce then return nil, 'lost' end
  if job.state == RUNNING then return job end
  if job.verb == VERBS[verb] then return nil, 'ok' end
  return nil, 'lost'
end
