#!lua flags=allow-oom
-- cancel: end jobs that have not ended; a running one is told to stop and its token is void.
--
-- moves    scheduled, ready, running -> cancelled
-- uses     clock records replies changes endings horizon
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          due       zset    member -> due_ms
--          leases    zset    member -> lease end
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          overrides hash    member -> what became of a far-future job while it waits in its table
--          events    stream  what happened
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
--          stop      channel tells workers to stop a run
--          ended_channel  channel  tells waiters that an awaited job ended
--          lanes...  stream  seven keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          keep_ms   how long cancelled jobs are kept
--          reason    one word, e.g. cancelled or purged
--          topic_count  how many topics follow
--          topic...  their names; then the members, all distinct
-- returns  for each job '<state it is in now> <revision>', or 'gone', or 'accepted' where its table may have it
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local members, words, called_off = {}, {}, {}
for at = topic_at + named, #ARGV do members[#members + 1] = ARGV[at] end

for at, job in ipairs(fetch(members)) do
  if not job and cold(members[at]) then
    called_off[#called_off + 1] = members[at]
    called_off[#called_off + 1] = 'cancelled'
    words[at] = 'accepted'
  elseif not job then
    words[at] = 'gone'
  elseif job.state > RUNNING then
    words[at] = string.format('%d %d', job.state, job.revision)
  else
    local topic = topic_of(job.member)
    call_off(job, topic, now)
    finish('cancelled', job, topic, CANCELLED, now, tonumber(keep_ms), '{"type":"' .. reason .. '"}', reason)
    words[at] = string.format('%d %d', job.state, job.revision)
  end
end
commit(now, nonce)
if #called_off > 0 then redis.call('HSET', overrides, unpack(called_off)) end
return words
