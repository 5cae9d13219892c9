#!lua flags=allow-oom
-- progress: note how far a running job has come.
--
-- moves    running -> running
-- uses     records
-- KEYS     jobs      hash    member -> record
--          progress  hash    member -> last reported progress
-- ARGV     member    of the job
--          fence     of its lease
--          value     JSON
-- returns  'ok', 'lost' or 'gone'
-- cost     O(1)

local record = redis.call('HGET', jobs, member)
if not record or not is_whole(record) then return 'gone' end
if string.byte(record) % 8 ~= RUNNING or fence_of(record) ~= fence then return 'lost' end
redis.call('HSET', progress, member, value)
return 'ok'
