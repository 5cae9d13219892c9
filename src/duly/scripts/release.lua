#!lua flags=allow-oom
-- release: give jobs back unfinished, uncounted, ready at once.
--
-- moves    running -> ready
-- uses     clock records topics events lanes ending
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          leases    zset    member -> lease end
--          events    stream  what happened
--          lanes...  stream  five keys for each topic, see lib/lanes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job: member, token, nonce
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words, mine, freed = {}, {}, {}, {}
for at = first, #ARGV, 3 do members[#members + 1] = ARGV[at] end

for at, job in ipairs(fetch(members)) do
  local arg = first + 3 * (at - 1)
  local run, word = held(job, tonumber(ARGV[arg + 1]), ARGV[arg + 2], 'release')
  words[at] = word or 'ok'
  if run then
    mine[#mine + 1] = run
    event('released', run, run.attempts + 1, run.due)
  end
end
if #mine == 0 then return words end
emit(now, nonce)

local entry = take_numbers(#mine)
for at, job in ipairs(mine) do
  local topic = topic_of(job.member)
  freed[at] = job.member
  drop_entry(topic, lane_of(job), job.entry)
  job.verb = VERBS.release
  line_up(job, topic, entry + at - 1)
  count(topic, RUNNING, -1)
  count(topic, READY, 1)
  put(job)
end
write_records()
redis.call('ZREM', leases, unpack(freed))
write_entries()
write_counts()
wake_topics()
return words
