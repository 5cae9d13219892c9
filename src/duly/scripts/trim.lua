#!lua flags=allow-oom
-- trim: remove events that every registered consumer has committed, but for the last one committed.
--
-- moves    nothing
-- uses     clock records replies changes
-- KEYS     meta      hash    the shard's numbers
--          events    stream  what happened
--          consumers hash    consumer -> counter of the last event it committed
-- ARGV     limit     at most this many entries in one call
-- returns  how many entries were removed
-- cost     O(limit)

local least
for _, counter in ipairs(redis.call('HVALS', consumers)) do
  counter = tonumber(string.match(counter, '^%d+'))
  if not least or counter < least then least = counter end
end
-- The entry at an offset stays: its reader compares it to tell a rolled-back server.
if not least or least < 2 then return 0 end
return trim(redis.call('XRANGE', events, '-', (least - 1) .. '-0', 'COUNT', limit), least - 1)
