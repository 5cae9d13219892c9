#!lua flags=allow-oom
-- sweep: drop stream entries that no ready job stands behind.
--
-- moves    nothing
-- uses     records
-- KEYS     jobs      hash    member -> record
--          lane      stream  one lane of one topic
-- ARGV     after     entry id to go on from
--          limit     at most this many entries
-- returns  {dropped, entry id to go on from, '' at the end}
-- cost     O(limit)

local found = redis.call('XRANGE', lane, after, '+', 'COUNT', limit)
local members, ids = {}, {}
for at, entry in ipairs(found) do members[at] = entry[2][2] end
for at, job in ipairs(fetch(members)) do
  local entry = number_of(found[at][1])
  if not job or job[ENTRY] ~= entry or job.state ~= READY then
    ids[#ids + 1] = found[at][1]
  end
end
if #ids > 0 then
  redis.call('XDEL', lane, unpack(ids))
end
-- The stream of a topic that was used once: an empty one costs memory all the same.
if redis.call('XLEN', lane) == 0 then redis.call('DEL', lane) end
local last = ''
if #found == tonumber(limit) then last = '(' .. found[#found][1] end
return {#ids, last}
