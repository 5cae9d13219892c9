-- specs: what a sender says of a new job, in 9 bytes: one for what it asks for, and 8 of milliseconds.
--
-- The byte has on_conflict in the place of the state, with 4 if it asks for a reply; lane; 32 if there are options; 64 if it
-- waits from now on; 128 if its sender waits for its end.  Behind it comes the request, 6 bytes, then options and body, as in a record.

local SPEC, WAITING, REQUEST_LENGTH = '>BI8', '>BI8c6I8', 6
local REPLACE, RAISE, ASKS, AWAITS = 1, 2, 4, 128

local function time_of(spec, ms, now_floor, now_ceil)
  if spec % 128 >= 64 then return ms == 0 and now_floor or now_ceil + ms end
  -- What is past is due now, so that lateness counts from when it was accepted.
  return ms > now_floor and ms or now_floor
end

-- The run of a record that has had none.
local function run_of(mark, marks, number, due_ms)
  return encode(START, mark + 64, 0, 0, 0, marks, number) .. NOT_ENDED .. NOT_CLAIMED .. encode(NUMBER, due_ms)
end

-- What those use that meet a job or a limit.
local met = {}

-- How many more jobs a topic takes; nil where it has no limit.
function met.room_of(topic)
  local about = redis.call('HMGET', key.topics, topic .. ':limit', topic .. ':scheduled', topic .. ':ready')
  return about[1] and about[1] - (about[2] or 0) - (about[3] or 0)
end

function met.answer_of(word, job, due_ms)
  return string.format('%s %d %d %d', word, job.revision, due_ms, job.state)
end

-- What a sender is told of an id that is taken: its first answer again if it was this very call; nil if the job is to be
-- replaced.  Then when that is due.
function met.answer_to(old, on_conflict, rest, now_ms)
  local due_ms = old.state == SCHEDULED and (due_score(old.member) or now_ms) or old[DUE]
  if old.request == cut(rest, 1, REQUEST_LENGTH) then
    return met.answer_of(has_mark(old, REPLACED) and 'replaced' or 'created', old, due_ms), due_ms
  end
  return on_conflict ~= REPLACE and met.answer_of(on_conflict == RAISE and 'exists' or 'kept', old, due_ms) or nil, due_ms
end
