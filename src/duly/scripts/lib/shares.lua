-- shares: who waits for jobs of a topic, and what part of those that are ready together is for whom.
--
-- `topics` has '<topic>:waiting' for each topic: 18 bytes for each worker that waits, its id, until when that counts, and
-- how many jobs it could take, with LOOKS added if it looks by itself when one falls due.  Workers with many topics stand in
-- '*:waiting'.  What falls due or comes together is divided among them by their free slots; a part that is not fetched
-- within SHARE_MS is open to everybody, so that a worker that died delays nothing.

local SHARE_MS, WAITERS_KEPT, WAITER, WAITER_BYTES, LOOKS, ALL = 20, 32, '>c8I8I2', 18, 32768, '*'

-- The waiters of a topic without a worker and those whose time is over; how many slots they have; whether that worker has
-- had its part already; its own entry; and how many of the others look before it does.
local function other_waiters(waiting, worker_id, now_ms)
  local others, slots, served, known, before = {}, 0, false, nil, 0
  for at = 1, #waiting - WAITER_BYTES + 1, WAITER_BYTES do
    local id, until_ms, free = decode(WAITER, waiting, at)
    if id == worker_id then
      served, known = until_ms > now_ms and free == 0, {until_ms, free}
    elseif until_ms > now_ms and #others < WAITERS_KEPT then
      others[#others + 1], slots = cut(waiting, at, at + WAITER_BYTES - 1), slots + free % LOOKS
      if free > LOOKS and id < worker_id then before = before + 1 end
    end
  end
  return table.concat(others), slots, served, known, before
end

-- Whether one of the waiters looks by itself.
local function is_looked_after(waiting, now_ms)
  for at = 1, #waiting - WAITER_BYTES + 1, WAITER_BYTES do
    local _, until_ms, free = decode(WAITER, waiting, at)
    if until_ms > now_ms and free > LOOKS then return true end
  end
  return false
end

-- How many of `available` jobs are for a worker with `free` slots beside others with `slots`.
local function share_of(available, free, slots)
  return math.ceil(available * free / (free + slots))
end
