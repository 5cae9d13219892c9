#!lua
-- thaw: take far-future jobs from their table, each unless it is here already or was changed while it waited there.
--
-- moves    (none) -> scheduled or ready; one that was cancelled there leaves nothing but its reply
-- uses     clock records replies changes arrivals
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
--          overrides hash    member -> what became of a far-future job while it waits in its table
--          hydrated  set     members that the pass under way has dealt with
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          pass      number of the pass; those before it are over
--          early     '1' for rows whose time has not come, which are taken only if they were rescheduled
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, spec, request with options
--                    with body; spec is 1 byte (lane, options or not, 64 if a reply is asked for) and 8 bytes due_ms
-- returns  for each job created, kept, cancelled or moved; or the one word over, if a later pass has begun
-- cost     O(jobs * log n)

local SPEC, BEGINNING, RESCHEDULED = '>BI8', '>BI8', '^due (%d+)$'

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 3 do members[#members + 1] = ARGV[at] end

local standing = tonumber(redis.call('HGET', meta, 'hydrating')) or 0
if tonumber(pass) < standing then return 'over' end
local fresh_pass = tonumber(pass) > standing
local dealt_with = fresh_pass and {} or redis.call('SMISMEMBER', hydrated, unpack(members))
local changed = redis.call('HMGET', overrides, unpack(members))
local number = take_numbers(2 * #members)
local dealt, settled, moved = {}, {}, {}

-- The job of a row, and when it is due by that.
local function job_at(at)
  local arg = first + 3 * (at - 1)
  local mark, due_ms = decode(SPEC, ARGV[arg + 1])
  -- What follows the mark is laid out like a record that waits for its first run.
  local job = read(members[at], encode(BEGINNING, mark % 64, number + at - 1) .. ARGV[arg + 2])
  if mark >= 64 then job[MARKS] = REPLY end
  return job, due_ms
end

local function bring(job, due_ms)
  arrive('enqueued', job, topic_of(job.member), due_ms, job.revision + #members, now, 'hydrated')
end

-- It leaves no record, as one that never came; but who asked to be told of its end is told.
local function tell_cancelled(job, due_ms)
  if not has_mark(job, REPLY) then return end
  job.state, job[ENDED], job[DUE] = CANCELLED, now, due_ms
  reply(job.member, job.body, write(job), '{"type":"cancelled"}')
end

for at, job in ipairs(fetch(members)) do
  local member, override = members[at], changed[at]
  local asked_ms = override and tonumber(string.match(override, RESCHEDULED))
  if dealt_with[at] == 1 or (early == '1' and not asked_ms) then
    words[at] = 'kept'
  elseif early == '1' then
    -- Its row stays in the table, and must not be taken again when its own time comes.
    moved[#moved + 1] = member
    moved[#moved + 1] = 'moved'
    if not job then bring(job_at(at), asked_ms) end
    words[at] = job and 'kept' or 'created'
  else
    dealt[#dealt + 1] = member
    if override then settled[#settled + 1] = member end
    if override and not asked_ms then
      if override == 'cancelled' then tell_cancelled(job_at(at)) end
      words[at] = override
    elseif job then
      words[at] = 'kept'
    else
      local fresh, due_ms = job_at(at)
      bring(fresh, asked_ms or due_ms)
      words[at] = 'created'
    end
  end
end
commit(now, nonce)
if fresh_pass then
  redis.call('HSET', meta, 'hydrating', pass)
  redis.call('UNLINK', hydrated)
end
if #dealt > 0 then redis.call('SADD', hydrated, unpack(dealt)) end
if #moved > 0 then redis.call('HSET', overrides, unpack(moved)) end
if #settled > 0 then redis.call('HDEL', overrides, unpack(settled)) end
wake_topics(now)
return words
