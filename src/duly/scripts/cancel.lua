#!lua flags=allow-oom
-- cancel: end jobs that have not ended; a running one is told to stop and its token is void.
--
-- moves    scheduled, ready, running -> cancelled
-- uses     clock records replies changes endings horizon requests
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
--          overrides hash    member -> what became of a far-future job while it waits in its table
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry; a call that is repeated has the same
--          sent_ms   when the call was first sent, by the server's clock as its sender knows it
--          seen      the highest number of the shard that its sender had seen by then
--          keep_ms   how long cancelled jobs are kept
--          reason    one word, e.g. cancelled or purged
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, revision that must stand ('' for any)
-- returns  for each job '<state it is in now> <revision>', or 'gone', or 'accepted' where its table may have it,
--          or 'conflict' where another revision stands, or 'unknown' where the call may have been made before
-- cost     O(jobs * log n)

local now = clock(now_ms)
local answer = recall(nonce)
if answer then return answer end
local late = is_forgotten(sent_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local members, words, called_off = {}, {}, {}
for at = topic_at + named, #ARGV, 2 do members[#members + 1] = ARGV[at] end

for at, job in ipairs(fetch(members)) do
  local must_stand = ARGV[topic_at + named + 2 * at - 1]
  -- Who has seen a revision has seen it here, and not in the table.
  if not job and must_stand == '' and cold(members[at]) then
    called_off[#called_off + 1] = members[at]
    called_off[#called_off + 1] = 'cancelled'
    words[at] = 'accepted'
  elseif not job then
    words[at] = 'gone'
  elseif late and job.revision > tonumber(seen) then
    words[at] = 'unknown'
  elseif must_stand ~= '' and job.revision ~= tonumber(must_stand) then
    words[at] = 'conflict'
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
return late and #called_off == 0 and words or remember(nonce, words, now, sent_ms)
