-- endings: a job reaches a state that is final for its revision, or comes back from one.

-- How long an ended job is kept at least, so that a call repeated after a lost reply gets its first answer.
local STUB_MS = 60000

-- What an ended job weighs against the byte limits: what it stores, and about what the indexes add.
local function weight_of(member, record, outcome, apart)
  local bytes = 2 * #member + #record + #outcome + 150
  if apart then bytes = bytes + redis.call('HSTRLEN', key.bodies, member) end
  return bytes
end

local function weigh(job, record, outcome)
  return weight_of(job.member, record, outcome, job.apart and not has_mark(job, BODY_DROPPED))
end

local function weigh_in(state, bytes)
  if state == DEAD then dead_weight = dead_weight + bytes else done_weight = done_weight + bytes end
end

-- Keep the outcome of an ended job, and tell who waits for it.
local function say_ended(member, marks, outcome)
  if outcome ~= '' then
    put_outcomes[#put_outcomes + 1] = member
    put_outcomes[#put_outcomes + 1] = outcome
  elseif marks % 16 >= ERROR_KEPT then
    dropped_outcomes[#dropped_outcomes + 1] = member
  end
  if marks % 2 == AWAITED then endings[#endings + 1] = member end
end

-- Make a stub of a job: what it was to run goes, and its envelope stays, which tells which request made it.
local function make_stub(job)
  if not has_mark(job, BODY_DROPPED) then
    local _, _, _, _, envelope_bytes = wishes(job)
    local body = job.body
    if job.apart then
      body = envelope_bytes > 0 and redis.call('HGET', key.bodies, job.member) or ''
      dropped_bodies[#dropped_bodies + 1] = job.member
      job.apart = false
    end
    job.body, job[MARKS] = cut(body, 1, envelope_bytes), job[MARKS] + BODY_DROPPED
  end
end

-- `keep_ms` is for jobs without a wish of their own; the dead are kept for their reader, whatever the wish.
local function finish(verb, job, topic, state, now_ms, keep_ms, outcome, reason)
  local was, told = job.state, outcome
  local body = has_mark(job, REPLY) and (job.apart and redis.call('HGET', key.bodies, job.member) or job.body)
  job.state, job[ENDED], job[ENTRY] = state, now_ms, 0
  if state ~= DEAD then
    local _, _, retain = wishes(job)
    if retain ~= UNKNOWN then keep_ms = retain * 1000 end
    if keep_ms == 0 then
      make_stub(job)
      -- Somebody waits for the outcome, or the record may have to be told of it.
      if not has_mark(job, AWAITED) and not shard[RECORD] then outcome = '' end
    end
  end
  keep_ms = math.max(keep_ms, STUB_MS)
  local record = put(verb, job, reason)
  weigh_in(state, weigh(job, record, outcome))
  count(topic, was, -1)
  count(topic, state, 1)
  if state == DEAD then
    dead_scores[#dead_scores + 1] = now_ms + keep_ms
    dead_scores[#dead_scores + 1] = job.member
  else
    keep_done(job.member, now_ms + keep_ms)
  end
  say_ended(job.member, job[MARKS], outcome)
  -- The reply is told also what is not kept of the job itself.
  if body then reply(job.member, body, record, told) end
end

-- End a job that was not started in time, wherever it is met; where it stood is the caller's to tidy.
function ages.expire(job, topic, now_ms, keep_ms)
  finish('cancelled', job, topic, CANCELLED, now_ms, keep_ms, '{"type":"expired"}', 'expired')
end

-- Take an ended job off the indexes and forget its outcome; its record is the caller's to write.
local function revive(job, topic)
  local outcome = redis.call('HGET', key.outcomes, job.member) or ''
  weigh_in(job.state, -weigh(job, write(job), outcome))
  local gone = job.state == DEAD and undead or undone
  gone[#gone + 1] = job.member
  dropped_outcomes[#dropped_outcomes + 1] = job.member
  count(topic, job.state, -1)
end

-- Take a job off its stream; a run of it is told to stop.
local function take_off(job, topic)
  if job.state == READY then drop_entry(topic, lane_of(job), job[ENTRY]) end
  if job.state == RUNNING then
    let_go(job.member)
    stops[#stops + 1] = string.format('%s %d', job.member, job[TOKEN])
  end
end

-- Make room where a job stands, for another revision or for none; `due` and its body are the caller's to tidy.
local function displace(job, topic)
  take_off(job, topic)
  if job.state > RUNNING then revive(job, topic) else count(topic, job.state, -1) end
  dropped_outcomes[#dropped_outcomes + 1] = job.member
end

-- Take an open job out of line for good; to finish it is the caller's.
local function call_off(job, topic, now_ms)
  take_off(job, topic)
  if job.state == SCHEDULED then
    job[DUE] = job[DUE] or due_score(job.member) or now_ms
    unschedule(job.member, topic)
  end
end
