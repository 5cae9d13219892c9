#!lua flags=allow-oom
-- bury: end jobs that cannot succeed; they stay for somebody to look at.
--
-- moves    running -> dead
-- uses     clock records replies changes endings
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          leases    zset    member -> lease end
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          events    stream  what happened
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  seven keys for each topic, see lib/changes.lua
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
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
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
