-- timers: who wakes first when a job falls due.
--
-- Three slots in `meta`: the holder of the first looks at the due time, the others a little later each,
-- whoever has none only scans.  Any number of timers is safe; the slots only avoid a herd.

local SLOT_MS = 3000
local RENEW_MS = 2000

local function hold_timer(name, role, now_ms)
  if name == '' or role == 'follower' then return 3 end
  for rank = 0, 2 do
    local holder, until_ms = string.match(shard[rank + 2] or '', '^(%S+) (%d+)$')
    local free = not holder or tonumber(until_ms) <= now_ms
    if free or holder == name or (rank == 0 and role == 'leader') then
      if free or holder ~= name or tonumber(until_ms) - now_ms < RENEW_MS then
        redis.call('HSET', meta, 'timer.' .. rank, name .. ' ' .. (now_ms + SLOT_MS))
      end
      return rank
    end
  end
  return 3
end
