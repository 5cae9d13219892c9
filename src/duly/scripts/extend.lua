#!lua flags=allow-oom
-- extend: prolong leases that are still held, never past the time to run.
--
-- moves    running -> running
-- uses     clock records
-- KEYS     meta      hash    the shard's numbers
--          jobs      hash    member -> record
--          leases    zset    member -> lease end
-- ARGV     now_ms    '' means the server's clock
--          lease_ms  how long the leases run from now
--          grace_ms  how far a lease may outlast the time to run
--          job...    three for each: member, fence, time to run
-- returns  {now_ms, 'ok' or 'lost' for each job}
-- cost     O(jobs * log n)

local now = clock(now_ms)
local members, words, scores = {}, {}, {}
for at = job_at, #ARGV, 3 do members[#members + 1] = ARGV[at] end
for at, record in ipairs(redis.call('HMGET', jobs, unpack(members))) do
  local arg = job_at + 3 * (at - 1)
  if record and #record >= HEAD_BYTES and string.byte(record) % 8 == RUNNING and fence_of(record) == ARGV[arg + 1] then
    words[at] = 'ok'
    local last = decode(NUMBER, record, STARTED_AT) + tonumber(ARGV[arg + 2]) + tonumber(grace_ms)
    scores[#scores + 1] = math.min(now + tonumber(lease_ms), last)
    scores[#scores + 1] = members[at]
  else
    words[at] = 'lost'
  end
end
if #scores > 0 then redis.call('ZADD', leases, unpack(scores)) end
return {now, words}
