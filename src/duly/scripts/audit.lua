#!lua flags=allow-oom
-- audit: compare some records with the indexes and streams, and mend what disagrees; end ready jobs that nobody started in time.
--
-- moves    ready, too late to start -> cancelled; else nothing, but it puts jobs back to where their record says they are
-- uses     clock records replies changes endings
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          keep_ms   how long an ended job without an index entry is kept
--          member_count  how many members follow
--          member... of the records to look at; then the topics whose streams are in KEYS
-- returns  {mended, topics met but not named,
--          {'<state> <weight once ended>' of each member}}
-- cost     O(members * log n)

local now = clock(now_ms)
local total = tonumber(member_count)
for at = member_at + total, #ARGV do name_topic(ARGV[at], at - member_at - total + 1) end
local members, states, unnamed, mended = {}, {}, {}, 0
for at = member_at, member_at + total - 1 do members[#members + 1] = ARGV[at] end

local function mend(job, what)
  mended = mended + 1
  event('mended', job.member, job.state and write(job) or NO_RECORD, what, job[DUE] or now)
end

local function unindex(job, except)
  local topic = topic_of(job.member)
  for name, index in pairs({due = due_of(topic), leases = leases, done = done, dead = dead}) do
    if name ~= except and redis.call('ZREM', index, job.member) == 1 then
      mend(job, 'not in ' .. name)
      if name == 'due' then index_due(topic) end
    end
  end
end

local function stands_in_line(topic, job)
  local entry = string.format('%d-0', job[ENTRY])
  return #redis.call('XRANGE', stream(topic, lane_of(job)), entry, entry) == 1
end

local found, is_damaged = fetch(members), {}
for at = 1, #damage.records, 2 do is_damaged[damage.records[at]] = true end
for at, job in ipairs(found) do
  local member = members[at]
  local topic = topic_of(member)
  states[at] = '-1 0'
  if job then
    local weight = 0
    if job.state > RUNNING then weight = weigh(job, write(job), redis.call('HGET', outcomes, member) or '') end
    states[at] = job.state .. ' ' .. weight
  end
  if job and job.state <= READY and first_key[topic] then use_lane(topic, job.state == READY and lane_of(job) or job.lane) end
  if not first_key[topic] then
    unnamed[topic] = true
  elseif is_damaged[member] then
    -- Where it stands tells what it was counted as; `commit` looks, and takes it off.
    mended = mended + 1
  elseif not job then
    unindex({member = member})
  elseif job.state == SCHEDULED then
    unindex(job, 'due')
    if not due_score(member) then
      mend(job, 'scheduled')
      redis.call('ZADD', due_of(topic), job[DUE] or now, member)
      index_due(topic)
      tell_timers({topic, now}, '')
    end
  elseif job.state == READY then
    unindex(job)
    local expires = wishes(job)
    if expires > 0 and expires < now then
      -- Claims find it, too, but a paused topic has none, nor has one without workers.
      call_off(job, topic, now)
      ages.expire(job, topic, now, tonumber(keep_ms))
    elseif not stands_in_line(topic, job) then
      -- Gone from its stream: line it up again under a new number.
      mended = mended + 1
      job[ENTRY] = take_numbers(1)
      line_up(job.member, topic, lane_of(job), job[ENTRY])
      put('mended', job, 'ready')
    end
  elseif job.state == RUNNING then
    unindex(job, 'leases')
    if not redis.call('ZSCORE', leases, member) then
      mend(job, 'running')
      redis.call('ZADD', leases, now, member)
    end
  else
    local index = job.state == DEAD and dead or done
    unindex(job, job.state == DEAD and 'dead' or 'done')
    if not redis.call('ZSCORE', index, member) then
      mend(job, 'ended')
      redis.call('ZADD', index, now + math.max(tonumber(keep_ms), STUB_MS), member)
    end
  end
end
-- Where no members are given it is the indexes of topics themselves that are looked at.
for at = member_at + total, total == 0 and #ARGV or 0 do
  local topic = ARGV[at]
  local was, ready = redis.call('ZSCORE', next_due, topic), redis.call('HGET', topics, topic .. ':ready')
  index_due(topic)
  if redis.call('ZSCORE', next_due, topic) ~= was then
    event('mended', topic .. '/', NO_RECORD, 'next due', now)
    tell_timers({topic, now}, '')
    mended = mended + 1
  end
  redis.call(tonumber(ready or 0) > 0 and 'SADD' or 'SREM', ready_topics, topic)
end
commit(now, nonce)
wake_topics(now)
return {mended, names_of(unnamed), states}
