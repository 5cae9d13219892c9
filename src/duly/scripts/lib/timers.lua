-- timers: who wakes first when a job falls due.
--
-- Slots in `meta`: the holder of the first looks at the due time, those of the next two a little later each,
-- whoever has none only scans.  The last gives no rank: a follower holds it, so that whoever leads knows that
-- it is not alone.  Any number of timers is safe; the slots only avoid a herd.

local SLOT_MS, RENEW_MS, FOLLOWS = 5000, 2500, 3

-- The rank of a timer, and how many others hold a slot.
local function hold_timer(name, role, now_ms)
  local rank, peers, held = FOLLOWS, 0, name == ''
  for slot = 0, FOLLOWS do
    local holder, until_ms = string.match(shard[FIRST_TIMER + slot] or '', '^(%S+) (%d+)$')
    local free = not holder or tonumber(until_ms) <= now_ms
    local may = not held and (role == 'follower') == (slot == FOLLOWS)
    if may and (free or holder == name or (slot == 0 and role == 'leader')) then
      rank, held = slot, true
      if free or holder ~= name or tonumber(until_ms) - now_ms < RENEW_MS then
        redis.call('HSET', key.meta, 'timer.' .. slot, name .. ' ' .. (now_ms + SLOT_MS))
      end
    elseif not free and holder ~= name then
      peers = peers + 1
    end
  end
  return rank, peers
end
