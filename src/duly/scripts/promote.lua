#!lua flags=allow-oom
-- promote: move up to `limit` due jobs of the named topics to their ready streams, earliest due first.
--
-- moves    scheduled -> ready; scheduled, too late to start -> cancelled
-- uses     clock records replies changes endings promotion timers
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          due       zset    member -> due_ms
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          leases    zset    member -> lease end
--          events    stream  what happened
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  seven keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          limit     at most this many in one call
--          keep_ms   how long an expired job is kept
--          name      of the timer that asks, '' for none
--          role      leader, follower or auto
--          topic...  topics whose streams are in KEYS
-- returns  {now_ms, moved, next_due_ms, next_lease_ms, rank of this timer, how many others hold
--          a slot, topics still due but not named,
--          microseconds beyond now_ms}
-- cost     O(limit * log n)

local now, _, micros = clock(now_ms)
for at = topic_at, #ARGV do name_topic(ARGV[at], at - topic_at + 1) end

local moved, number = 0, 0
local unnamed = for_each_due(now, 0, tonumber(limit), tonumber(keep_ms), function(member, topic, record, due_ms)
  if moved == 0 then number = take_numbers(tonumber(limit)) end
  promote(member, topic, record, due_ms, number + moved)
  moved = moved + 1
end)
commit(now, nonce)
wake_topics()
local rank, peers = hold_timer(name, role, now)
return {now, moved, first_score(due), first_score(leases), rank, peers, names_of(unnamed), micros}
