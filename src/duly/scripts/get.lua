#!lua flags=no-writes
-- get: everything the shard knows of some jobs, at one moment.
--
-- moves    nothing
-- uses     records
-- KEYS     jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          leases    zset    member -> lease end
--          due...    zset    for each job, that of its topic
-- ARGV     member... of the jobs
-- returns  for each job {record, body kept apart, outcome, progress, due_ms, lease_ms}, {} if there is none, or {''} if it is
--          damaged
-- cost     O(jobs * log n)

local found = {}
for at = member_at, #ARGV do
  local member = ARGV[at]
  local record = redis.call('HGET', jobs, member)
  local about = record and {''} or {}
  if record and is_whole(record) then
    about = {
      record,
      redis.call('HGET', bodies, member) or '',
      redis.call('HGET', outcomes, member) or '',
      redis.call('HGET', progress, member) or '',
      redis.call('ZSCORE', KEYS[due_at + at - member_at], member) or '',
      redis.call('ZSCORE', leases, member) or '',
    }
  end
  found[at - member_at + 1] = about
end
return found
