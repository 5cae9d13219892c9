#!lua flags=allow-oom
-- retry: schedule jobs again after a failed attempt (counted) or a snooze (not counted).
--
-- moves    running -> scheduled
-- uses     clock records replies changes endings
-- KEYS     (queue)           everything that a transition may touch
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job: member, fence, lateness_ms,
--                    delay_ms, counted ('1' or '0'), error document, one-line reason
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now, now_ceil = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 7 do members[#members + 1] = ARGV[at] end

for at, found in ipairs(fetch(members)) do
  local arg = first + 7 * (at - 1)
  local job, word = held(found, ARGV[arg + 1], 'retry')
  words[at] = word or 'ok'
  if job then
    local topic = topic_of(job.member)
    let_go(job.member)
    job[ATTEMPTS] = math.min(job[ATTEMPTS] + tonumber(ARGV[arg + 4]), 65535)
    job[VERB], job[LATE] = VERBS.retry, tonumber(ARGV[arg + 2])
    -- It ran to an end: whatever its worker died of before was not this job.
    if ARGV[arg + 4] == '1' then job[CRASHES] = 0 end
    ages.keep_first_due(job)
    -- It stands in no line: the number tells when this was.
    job.state, job[ENTRY], job[DUE] = SCHEDULED, take_numbers(1), now_ceil + tonumber(ARGV[arg + 3])
    count(topic, RUNNING, -1)
    count(topic, SCHEDULED, 1)
    schedule(job.member, topic, job[DUE])
    use_lane(topic, job.lane)
    if ARGV[arg + 5] ~= '' then
      job[MARKS] = bit.bor(job[MARKS], ERROR_KEPT)
      put_outcomes[#put_outcomes + 1] = job.member
      put_outcomes[#put_outcomes + 1] = ARGV[arg + 5]
    end
    put('retried', job, ARGV[arg + 6])
  end
end
commit(now, nonce)
return words
