-- timers: who wakes first when a job falls due.
--
-- Three slots in `meta`: the holder of the first looks at the due time, the others a little later each,
-- whoever has none only scans.  Any number of timers is safe; the slots only avoid a herd.

local SLOT_MS, RENEW_MS = 5000, 2500

-- The rank of a timer, and how many others hold a slot.
local function hold_timer(name, role, now_ms)
  local rank, peers = 3, 0
  for slot = 0, 2 do
    local holder, until_ms = string.match(shard[FIRST_TIMER + slot] or '', '^(%S+) (%d+)$')
    local free = not holder or tonumber(until_ms) <= now_ms
    local may = rank == 3 and name ~= '' and role ~= 'follower'
    if may and (free or holder == name or (slot == 0 and role == 'leader')) then
      rank = slot
      if free or holder ~= name or tonumber(until_ms) - now_ms < RENEW_MS then
        redis.call('HSET', meta, 'timer.' .. slot, name .. ' ' .. (now_ms + SLOT_MS))
      end
    elseif not free and holder ~= name then
      peers = peers + 1
    end
  end
  return rank, peers
end
