-- schedule: put jobs into `due`, and tell the timers when an earlier one arrived.

local scores, earliest = {}, nil

local function schedule(job, due_ms)
  scores[#scores + 1] = due_ms
  scores[#scores + 1] = job.member
  if not earliest or due_ms < earliest then earliest = due_ms end
end

local function write_schedule()
  if #scores == 0 then return end
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  redis.call('ZADD', due, unpack(scores))
  -- Sleepers read this stream from the last id they saw: no wake-up falls between look and sleep.
  if not head[2] or earliest < tonumber(head[2]) then
    redis.call('XADD', timer, 'MAXLEN', 1, '*', 'due_ms', earliest)
  end
end
