-- arrivals: jobs that were promised elsewhere, in a record or a table of far-future jobs, and come here.

-- Put a job that waits in its place: ready under a number of its own if it is due, else scheduled.
-- No limit refuses what was promised long ago, and its due time is what was promised, be it past.
local function arrive(verb, job, topic, due_ms, number, now_ms, reason)
  use_lane(topic, job.lane)
  if due_ms <= now_ms then
    job.state, job[ENTRY] = READY, number
    line_up(job.member, topic, lane_of(job), number)
  else
    move_due(job.member, topic, due_ms)
  end
  -- A record without a run has no place for any of these.
  if job.state == READY or job[ATTEMPTS] + job[CRASHES] + job[MARKS] > 0 then job[DUE] = due_ms end
  if #job.body > INLINE_BYTES then
    put_bodies[#put_bodies + 1] = job.member
    put_bodies[#put_bodies + 1] = job.body
    job.body, job.apart = '', true
  end
  count(topic, job.state, 1)
  keep(verb, job.member, write(job), reason, due_ms)
end
