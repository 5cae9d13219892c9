#!lua flags=allow-oom
-- ack: finish jobs that ran well.
--
-- moves    running -> succeeded
-- uses     clock records topics events lanes ending
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
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          keep_ms   how long succeeded jobs are kept
--          topic_count  how many topics follow
--          topic...  their names; then for each job: member, token, nonce, lateness_ms, run_ms, result
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words, mine, freed = {}, {}, {}, {}
for at = first, #ARGV, 6 do members[#members + 1] = ARGV[at] end

for at, job in ipairs(fetch(members)) do
  local arg = first + 6 * (at - 1)
  local run, word = held(job, tonumber(ARGV[arg + 1]), ARGV[arg + 2], 'ack')
  words[at] = word or 'ok'
  if run then
    run.attempts, run.verb, run.late = run.attempts + 1, VERBS.ack, tonumber(ARGV[arg + 3])
    mine[#mine + 1] = {job = run, result = ARGV[arg + 5]}
    event('acked', run, run.attempts, run.due, ARGV[arg + 3], ARGV[arg + 4])
  end
end
if #mine == 0 then return words end
emit(now, nonce)

for at, one in ipairs(mine) do
  local job = one.job
  local topic = topic_of(job.member)
  freed[at] = job.member
  drop_entry(topic, lane_of(job), job.entry)
  finish(job, topic, SUCCEEDED, now, tonumber(keep_ms), one.result)
end
write_records()
redis.call('ZREM', leases, unpack(freed))
write_entries()
write_endings()
write_counts()
return words
