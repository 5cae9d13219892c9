#!lua flags=allow-oom
-- hold: keep a job that waits from starting while its row is changed, at the revision that it has.
--
-- moves    scheduled, ready -> scheduled
-- uses     clock records replies changes
-- KEYS     (queue)           everything that a transition may touch
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic     of the job
--          member    of the job
--          revision  that must stand, '' for any
--          when      '+ms' from now at the earliest, or absolute, to let it go again
-- returns  '<word> <revision> <due_ms> <state>' as it was before, word one of ok conflict gone
-- cost     O(log n)

local now_floor, now_ceil = clock(now_ms)
name_topic(topic, 1)
local job = fetch({member})[1]
if not job then
  commit(now_floor, nonce)
  return 'gone 0 0 0'
end

local was_ms = job.state == SCHEDULED and due_score(member) or job[DUE] or now_floor
local answer = string.format('%d %d %d', job.revision, was_ms, job.state)
if job.state > READY or (revision ~= '' and job.revision ~= tonumber(revision)) then return 'conflict ' .. answer end

local due_ms, from_now = tonumber(when), string.byte(when) == 43
if from_now then
  local expires_ms = wishes(job)
  due_ms = now_ceil + when
  -- Whoever holds it may never let it go: it has a second then before it expires.
  if expires_ms > 0 then due_ms = math.min(due_ms, expires_ms - 1000) end
  due_ms = math.max(due_ms, was_ms)
else
  -- Several may have held it: the first of them knows when it was due.
  due_ms = math.min(due_ms, was_ms)
end
if due_ms ~= was_ms then
  if job.state == READY then
    drop_entry(topic, lane_of(job), job[ENTRY])
    count(topic, READY, -1)
    count(topic, SCHEDULED, 1)
  end
  job.state, job[ENTRY], job[DUE] = SCHEDULED, 0, due_ms
  move_due(member, topic, due_ms)
  put('rescheduled', job, from_now and 'held' or 'let go')
  commit(now_floor, nonce)
end
return 'ok ' .. answer
