#!lua flags=allow-oom
-- retry: schedule jobs again after a failed attempt (counted) or a snooze (not counted).
--
-- moves    running -> scheduled
-- uses     clock records topics events lanes schedule ending
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          due       zset    member -> due_ms
--          leases    zset    member -> lease end
--          events    stream  what happened
--          timer     stream  the earliest due time changed
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job: member, token, nonce, lateness_ms, run_ms,
--                    delay_ms, counted ('1' or '0'), error document, one-line reason
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now, now_ceil = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words, mine, freed = {}, {}, {}, {}
for at = first, #ARGV, 9 do members[#members + 1] = ARGV[at] end

for at, job in ipairs(fetch(members)) do
  local arg = first + 9 * (at - 1)
  local run, word = held(job, tonumber(ARGV[arg + 1]), ARGV[arg + 2], 'retry')
  words[at] = word or 'ok'
  if run then
    event('retried', run, run.attempts + 1, run.due, ARGV[arg + 3], ARGV[arg + 4], '', ARGV[arg + 8])
    run.attempts = run.attempts + tonumber(ARGV[arg + 6])
    run.verb, run.late = VERBS.retry, tonumber(ARGV[arg + 3])
    mine[#mine + 1] = {job = run, due = now_ceil + tonumber(ARGV[arg + 5]), error = ARGV[arg + 7]}
  end
end
if #mine == 0 then return words end
emit(now, nonce)

for at, one in ipairs(mine) do
  local job = one.job
  local topic = topic_of(job.member)
  freed[at] = job.member
  drop_entry(topic, lane_of(job), job.entry)
  job.state, job.entry, job.due = SCHEDULED, 0, one.due
  count(topic, RUNNING, -1)
  count(topic, SCHEDULED, 1)
  schedule(job, one.due)
  put(job)
  if one.error ~= '' then redis.call('HSET', outcomes, job.member, one.error) end
end
write_records()
write_schedule()
redis.call('ZREM', leases, unpack(freed))
redis.call('HDEL', progress, unpack(freed))
write_entries()
write_counts()
return words
