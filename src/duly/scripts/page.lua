#!lua flags=no-writes
-- page: members of an index behind a place, whether or not the one that stood there is gone.
--
-- moves    nothing
-- KEYS     index     zset    one of due, leases, done, dead
-- ARGV     score     of the place, '-inf' to begin
--          member    of the place; '' stands in front of all that have its score
--          limit     at most this many
-- returns  {member, score, member, score, ...} in the order of the index
-- cost     O(limit + log n * log members of that score)

-- As the index sorts: Lua's own < goes by the server's locale.
local function is_before(one, other)
  for at = 1, math.min(#one, #other) do
    local left, right = string.byte(one, at), string.byte(other, at)
    if left ~= right then return left < right end
  end
  return #one < #other
end

-- From `first` on there are only members behind the place, if any; those before `start` are not.
local start = redis.call('ZCOUNT', index, '-inf', '(' .. score)
local first = start + redis.call('ZCOUNT', index, score, score)
while start < first do
  local middle = math.floor((start + first) / 2)
  if is_before(member, redis.call('ZRANGE', index, middle, middle)[1]) then
    first = middle
  else
    start = middle + 1
  end
end
return redis.call('ZRANGE', index, start, start + limit - 1, 'WITHSCORES')
