-- clock: the server's time, or the time of a test where the namespace was created for one.

-- Whole milliseconds: rounded down to decide what is due, rounded up to start counting a delay.
local function clock(given)
  if given ~= '' then
    if redis.call('HGET', meta, 'clock') ~= 'test' then
      error({err = 'ERR this namespace runs on the clock of its server; create it with clock=test to pass a time'})
    end
    return tonumber(given), tonumber(given)
  end
  local time = redis.call('TIME')
  local ms = time[1] * 1000
  return ms + math.floor(time[2] / 1000), ms + math.ceil(time[2] / 1000)
end

-- Numbers of the shard that are never reused: revisions, tokens and stream entries alike.
local function take_numbers(count)
  return redis.call('HINCRBY', meta, 'sequence', count) - count + 1
end
