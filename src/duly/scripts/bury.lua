#!lua flags=allow-oom
-- bury: end jobs that cannot succeed; they stay for somebody to look at.
--
-- moves    running -> dead
-- uses     clock records replies changes endings
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          keep_ms   how long dead jobs are kept
--          topic_count  how many topics follow
--          topic...  their names; then for each job: member, fence, lateness_ms,
--                    error document, one-line reason
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 5 do members[#members + 1] = ARGV[at] end

for at, found in ipairs(fetch(members)) do
  local arg = first + 5 * (at - 1)
  local job, word = held(found, ARGV[arg + 1], 'bury')
  words[at] = word or 'ok'
  if job then
    local topic = topic_of(job.member)
    let_go(job.member)
    job[ATTEMPTS], job[VERB], job[LATE] = job[ATTEMPTS] + 1, VERBS.bury, tonumber(ARGV[arg + 2])
    finish('buried', job, topic, DEAD, now, tonumber(keep_ms), ARGV[arg + 3], ARGV[arg + 4])
  end
end
commit(now, nonce)
return words
