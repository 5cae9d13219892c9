#!lua flags=allow-oom
-- drop: remove damaged jobs from quarantine, for good.
--
-- moves    nothing
-- KEYS     jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          quarantine  hash  member -> record that is damaged
-- ARGV     member... of the jobs
-- returns  1 for each job that was there, else 0
-- cost     O(jobs)

local dropped = {}
for at = member_at, #ARGV do
  local member = ARGV[at]
  dropped[#dropped + 1] = redis.call('HDEL', quarantine, member)
  -- What was kept apart of it belongs to the job that has its id by now.
  if redis.call('HEXISTS', jobs, member) == 0 then redis.call('HDEL', bodies, member) end
end
return dropped
