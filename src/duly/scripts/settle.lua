#!lua flags=allow-oom
-- settle: end a pass that was committed, and forget changes that no far-future job was found for.
--
-- moves    nothing
-- KEYS     meta      hash    the shard's numbers
--          overrides hash    member -> what became of a far-future job while it waits in its table
--          hydrated  set     members that the pass under way has dealt with
-- ARGV     pass      number of the pass
--          member... two for each change to forget: member, and what it was when the pass began
-- returns  how many were forgotten
-- cost     O(changes)

local forgotten = {}
for at = member_at, #ARGV, 2 do
  -- Made anew meanwhile, it is for a row that may have come meanwhile, too.
  if redis.call('HGET', overrides, ARGV[at]) == ARGV[at + 1] then forgotten[#forgotten + 1] = ARGV[at] end
end
if #forgotten > 0 then redis.call('HDEL', overrides, unpack(forgotten)) end
-- Whoever is still at this pass is told that it is over: nothing here remembers what was moved in it.
if (tonumber(redis.call('HGET', meta, 'hydrating')) or 0) <= tonumber(pass) then
  redis.call('HSET', meta, 'hydrating', pass + 1)
  redis.call('UNLINK', hydrated)
end
return #forgotten
