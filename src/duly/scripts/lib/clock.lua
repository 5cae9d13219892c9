-- clock: the server's time, or the time of a test where the namespace was created for one.

-- Whole milliseconds: rounded down to decide what is due, rounded up to start counting a delay; then the
-- microseconds that the first leaves out, for who wants to sleep until a due time and no longer.
local shard  -- who holds the timer slots is read with the clock, to ask `meta` once

local function clock(given)
  shard = redis.call('HMGET', meta, 'clock', 'timer.0', 'timer.1', 'timer.2')
  if not shard[1] then
    -- Before anything is written: a shard half made would be worse than none.
    error({err = 'NONAMESPACE there is no such namespace (any more): it was never created, or the server was emptied'})
  end
  if given ~= '' then
    if shard[1] ~= 'test' then
      error({err = 'ERR this namespace runs on the clock of its server; create it with clock=test to pass a time'})
    end
    return tonumber(given), tonumber(given), 0
  end
  local time = redis.call('TIME')
  local ms = time[1] * 1000
  return ms + math.floor(time[2] / 1000), ms + math.ceil(time[2] / 1000), time[2] % 1000
end

-- Numbers of the shard that are never reused: revisions, tokens and stream entries alike.
local function take_numbers(count)
  return redis.call('HINCRBY', meta, 'sequence', count) - count + 1
end
