#!lua flags=allow-oom
-- progress: note how far a running job has come.
--
-- moves    running -> running
-- uses     records
-- KEYS     jobs      hash    member -> record
--          progress  hash    member -> last reported progress
-- ARGV     member    of the job
--          token     of its lease
--          nonce     of its lease
--          value     JSON
-- returns  'ok', 'lost' or 'gone'
-- cost     O(1)

local record = redis.call('HGET', jobs, member)
local job = record and read(member, record)
if not job then return 'gone' end
if job.state ~= RUNNING or job[TOKEN] ~= tonumber(token) or job[NONCE] ~= nonce then return 'lost' end
redis.call('HSET', progress, member, value)
return 'ok'
