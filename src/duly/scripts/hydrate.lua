#!lua
-- hydrate: take over jobs from the record, each with the revision that its row has.
--
-- moves    (none), or any state at a lower revision -> scheduled or ready; of a cancelled row -> cancelled
-- uses     clock records replies changes endings arrivals
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          keep_ms   how long cancelled jobs are kept
--          reason    why jobs of this call were cancelled, one word
--          generation  of the queue that is meant, '' for any: what was found to be behind gets nothing from before
--          read_ms   when the rows were read, '' for just now
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, promise, request with options
--                    with body; promise is 1 byte (state of the row, scheduled or cancelled, lane, options or not,
--                    64 if a reply is asked for), due_ms 8, revision 8, attempts 2 and crashes 2 bytes
-- returns  {for each job '<word> <revision> <state>' as it stands there now, word one of created replaced kept;
--          counter and 'about' of the newest event, by which a loss of what was written is noticed};
--          'stale' where the rows were read so long ago that what has ended since may be forgotten
-- cost     O(jobs * log n)

local PROMISE, BEGINNING = '>BI8I8HH', '>BI8'
local FRESH_MS = 30000  -- half of how long a closed job leaves a trace at least

local now = clock(now_ms)
if read_ms ~= '' and now - tonumber(read_ms) > FRESH_MS then return 'stale' end
if generation ~= '' then must_be_sound(generation) end
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 3 do members[#members + 1] = ARGV[at] end
local entry = take_numbers(#members)

local function answer_of(word, job)
  return string.format('%s %d %d', word, job.revision, job.state)
end

local function bring(job, old, topic, due_ms, number)
  if old then
    job[MARKS] = job[MARKS] + bit.band(old[MARKS], AWAITED)
    displace(old, topic)
    if old.state == SCHEDULED and due_ms <= now then unschedule(job.member, topic) end
  end
  arrive('hydrated', job, topic, due_ms, number, now)
  if old and old.apart and not job.apart then dropped_bodies[#dropped_bodies + 1] = job.member end
end

-- The job as it stands then.  A trace is left also where there was none: who still has the open row in hand and
-- comes late meets the higher revision.
local function cancel(job, old, topic, due_ms)
  if old then
    local was = #write(old)
    ages.revise(old, job.revision, job.request)
    if old.state > RUNNING then weigh_in(old.state, #write(old) - was) end
    job = old
  else
    -- It came with its envelope, and nothing else.
    job[DUE], job[MARKS] = due_ms, job[MARKS] + BODY_DROPPED
    count(topic, job.state, 1)
  end
  if job.state > RUNNING then
    put('hydrated', job)
  else
    if old then call_off(job, topic, now) end
    finish('cancelled', job, topic, CANCELLED, now, tonumber(keep_ms), '{"type":"' .. reason .. '"}', reason)
  end
  return job
end

for at, old in ipairs(fetch(members)) do
  local arg = first + 3 * (at - 1)
  local mark, due_ms, revision, attempts, crashes = decode(PROMISE, ARGV[arg + 1])
  local topic = topic_of(members[at])
  if old and old.revision >= revision then
    words[at] = answer_of('kept', old)
  else
    -- What follows the mark is laid out like a record that waits for its first run.
    local job = read(members[at], encode(BEGINNING, mark % 64 - mark % 8, revision) .. ARGV[arg + 2])
    job[ATTEMPTS], job[CRASHES], job[MARKS] = attempts, crashes, mark >= 64 and REPLY or 0
    if mark % 8 == CANCELLED then
      job = cancel(job, old, topic, due_ms)
    else
      bring(job, old, topic, due_ms, entry + at - 1)
    end
    words[at] = answer_of(old and 'replaced' or 'created', job)
  end
end
commit(now, nonce)
wake_topics(now)
local newest = redis.call('XREVRANGE', key.events, '+', '-', 'COUNT', 1)[1]
return {words, newest and {newest[1], newest[2][2]} or {}}
