#!lua flags=no-writes
-- page: members of indexes behind a place, whether or not the one that stood there is gone.
--
-- moves    nothing
-- KEYS     index...  zset    leases, done, dead, or `due` of some topics
-- ARGV     score     of the place, '-inf' to begin
--          member    of the place; '' stands in front of all that have its score
--          limit     at most this many
-- returns  for each index {member, score, member, score, ...} in its order
-- cost     O(indexes * (limit + log n * log members of that score))

-- As the index sorts: Lua's own < goes by the server's locale.
local function is_before(one, other)
  for at = 1, math.min(#one, #other) do
    local left, right = string.byte(one, at), string.byte(other, at)
    if left ~= right then return left < right end
  end
  return #one < #other
end

local pages = {}
for at = index_at, #KEYS do
  local index = KEYS[at]
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
  pages[at - index_at + 1] = redis.call('ZRANGE', index, start, start + limit - 1, 'WITHSCORES')
end
return pages
