#!lua flags=allow-oom
-- watch: ask to be told when a job ends.
--
-- moves    nothing; marks an open job as awaited, so that only such jobs are published
-- uses     records
-- KEYS     jobs      hash    member -> record
--          outcomes  hash    member -> result or error
--          due       zset    those of its topic that wait for their time -> due_ms
-- ARGV     member    of the job
-- returns  {state, revision, result or error, 1 if there was a result that is gone} of an ended job, {state, revision} of
--          an open one, {} if there is none
-- cost     O(log n)

local record = redis.call('HGET', jobs, member)
local job = record and is_whole(record) and read(member, record)
if not job then return {} end
if job.state > RUNNING then
  local outcome = redis.call('HGET', outcomes, member) or ''
  return {job.state, job.revision, outcome, has_mark(job, RESULT_DROPPED) and 1 or 0}
end
if not has_mark(job, AWAITED) then
  job[DUE] = job[DUE] or tonumber(redis.call('ZSCORE', due, member))
  job[MARKS] = job[MARKS] + AWAITED
  -- A job in neither place is left for the auditor to put back.
  if job[DUE] then redis.call('HSET', jobs, member, write(job)) end
end
return {job.state, job.revision}
