#!lua flags=allow-oom
-- ack: finish jobs that ran well.
--
-- moves    running -> succeeded
-- uses     clock records changes endings
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
--          topic...  their names; then for each job: member, token, nonce, lateness_ms, result
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words = {}, {}
for at = first, #ARGV, 5 do members[#members + 1] = ARGV[at] end
local default_ms = tonumber(keep_ms)

-- Without a table for each job: see `open`.  What it does is `finish`, said once more for speed.
for at, record in ipairs(redis.call('HMGET', jobs, unpack(members))) do
  local member, arg = members[at], first + 5 * (at - 1)
  local word = 'gone'
  if record then
    local mark, revision, request, run_at, due_ms, attempts, crashes, entry, token, its_nonce, verb, marks, started, _, _,
      worker, body_at = open(record)
    local state, outcome, until_ms = mark % 8, ARGV[arg + 4], default_ms
    if token ~= tonumber(ARGV[arg + 1]) or its_nonce ~= ARGV[arg + 2] then
      word = 'lost'
    elseif state ~= RUNNING then
      word = verb == VERBS.ack and 'ok' or 'lost'
    else
      word = 'ok'
      local topic = topic_of(member)
      local _, _, retain = wishes_of(record, mark)
      if retain ~= UNKNOWN then until_ms = retain * 1000 end
      if until_ms < STUB_MS then
        until_ms, outcome, body_at, marks = STUB_MS, '', #record + 1, bit.bor(marks, BODY_DROPPED)
        if mark >= 128 then dropped_bodies[#dropped_bodies + 1] = member end
      end
      freed[#freed + 1] = member
      drop_entry(topic, crashes > 0 and SUSPECT or floor(mark / 8) % 4, entry)
      record = keep('acked', member, reseal(record, mark - RUNNING + SUCCEEDED, revision, request, run_at, due_ms,
        attempts + 1, crashes, 0, token, its_nonce, VERBS.ack, marks, started, now, tonumber(ARGV[arg + 3]), worker, body_at))
      close(member, topic, SUCCEEDED, RUNNING, now + until_ms, marks, outcome,
        weight_of(member, record, outcome, mark >= 128 and marks % 8 < BODY_DROPPED))
    end
  end
  words[at] = word
end
commit(now, nonce)
return words
