#!lua flags=allow-oom
-- forget: let go of jobs, in whatever state, because the record says that they are over.
--
-- moves    any state -> (gone)
-- uses     clock records replies changes endings
-- KEYS     (queue)           everything that a transition may touch
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          topic_count  how many topics follow
--          topic...  their names; then for each job, all members distinct: member, highest revision to forget
-- returns  for each job 'forgotten', 'kept' where its revision is higher, or 'gone' where there is none
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
for at = 1, named do name_topic(ARGV[topic_at + at - 1], at) end
local first = topic_at + named
local members, words, gone = {}, {}, {}
for at = first, #ARGV, 2 do members[#members + 1] = ARGV[at] end

for at, job in ipairs(fetch(members)) do
  if not job then
    words[at] = 'gone'
  elseif job.revision > tonumber(ARGV[first + 2 * at - 1]) then
    words[at] = 'kept'
  else
    local due_ms = job[DUE]
    if job.state == SCHEDULED then
      due_ms = due_ms or due_score(job.member) or now
      unschedule(job.member, topic_of(job.member))
    end
    displace(job, topic_of(job.member))
    if job.apart then dropped_bodies[#dropped_bodies + 1] = job.member end
    event('forgotten', job.member, write(job), nil, due_ms)
    gone[#gone + 1] = job.member
    words[at] = 'forgotten'
  end
end
commit(now, nonce)
if #gone > 0 then redis.call('HDEL', jobs, unpack(gone)) end
return words
