-- specs: what a sender says of a new job, in 9 bytes: one for what it asks for, and 8 of milliseconds.
--
-- The byte has on_conflict in the place of the state, with 4 if it asks for a reply; lane; 32 if there are options; 64 if it
-- waits from now on.  Behind it comes the request, 6 bytes, then options and body, as in a record.

local SPEC, WAITING, REQUEST_LENGTH = '>BI8', '>BI8c6I8', 6

local function time_of(spec, ms, now_floor, now_ceil)
  if spec >= 64 then return ms == 0 and now_floor or now_ceil + ms end
  -- What is past is due now, so that lateness counts from when it was accepted.
  return ms > now_floor and ms or now_floor
end

-- The run of a record that has had none.
local function run_of(mark, marks, number, due_ms)
  return encode(START, mark + 64, 0, 0, 0, marks, number) .. NOT_ENDED .. NOT_CLAIMED .. encode(NUMBER, due_ms)
end
