#!lua flags=allow-oom
-- release: give jobs back unfinished, uncounted, ready at once.
--
-- moves    running -> ready
-- uses     clock records replies changes endings
-- KEYS     (queue)           everything that a transition may touch
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job: member, fence
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 2 do members[#members + 1] = ARGV[at] end
local entry = take_numbers(#members)

for at, found in ipairs(fetch(members)) do
  local arg = first + 2 * (at - 1)
  local job, word = held(found, ARGV[arg + 1], 'release')
  words[at] = word or 'ok'
  if job then
    local topic = topic_of(job.member)
    let_go(job.member)
    job.state, job[ENTRY], job[VERB] = READY, entry + at - 1, VERBS.release
    line_up(job.member, topic, lane_of(job), job[ENTRY])
    count(topic, RUNNING, -1)
    count(topic, READY, 1)
    put('released', job)
  end
end
commit(now, nonce)
wake_topics(now)
return words
