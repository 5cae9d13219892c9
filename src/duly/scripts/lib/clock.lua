-- clock: the server's time, or the time of a test where the namespace was created for one.

-- What a call may need of the shard's numbers is asked for once, with the clock: a look into `meta` costs
-- more than all the fields of it.  What changed is written back once, by `emit` or `commit`.
local CLOCK, EPOCH, SEQUENCE, COUNTER, ROWS, BYTES, ROWS_GONE, BYTES_GONE, MAX_ROWS, MAX_BYTES, RECORD, BROAD, CHECKED, LIMITED, FIRST_TIMER =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
local shard
local sequence, sequence_was

-- Whole milliseconds: rounded down to decide what is due, rounded up to start counting a delay; then the
-- microseconds that the first leaves out, for who wants to sleep until a due time and no longer.
local function clock(given)
  shard = redis.call('HMGET', key.meta, 'clock', 'epoch', 'sequence', 'events', 'event_rows', 'event_bytes',
    'trimmed_rows', 'trimmed_bytes', 'max_event_rows', 'max_event_bytes', 'record', 'broad', 'checked', 'limited',
    'timer.0', 'timer.1', 'timer.2', 'timer.3')
  if not shard[CLOCK] then
    -- Before anything is written: a shard half made would be worse than none.
    error({err = 'NONAMESPACE there is no such namespace (any more): it was never created, or the server was emptied'})
  end
  sequence = tonumber(shard[SEQUENCE])
  sequence_was = sequence
  if given ~= '' then
    if shard[CLOCK] ~= 'test' then
      error({err = 'ERR this namespace runs on the clock of its server; create it with clock=test to pass a time'})
    end
    shard.began = given * 1000
    return tonumber(given), tonumber(given), 0
  end
  local time = redis.call('TIME')
  local ms = time[1] * 1000
  shard.began = (ms + math.floor(time[2] / 1000)) * 1000
  return ms + math.floor(time[2] / 1000), ms + math.ceil(time[2] / 1000), time[2] % 1000
end

-- Numbers of the shard that are never reused: revisions, tokens and stream entries alike.  They are microseconds since 1970,
-- of a whole millisecond and on from there, so a record tells when it was accepted and changed without a field for that.
local function take_numbers(count)
  local first = sequence < shard.began and shard.began or sequence + 1
  sequence = first + count - 1
  return first
end

-- The server itself, and what was approved of each shard with a record since it began: see approve.lua.  That is in
-- memory only, so a server that was started again, from whatever it has on disk, or a promoted replica has none.
local server = {approvals = {}}

-- Its own time in whole milliseconds, which a test that moves its clock does not move.
function server.ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Changes with every promotion, so a former primary that comes back is not taken for what it was.
function server.replication()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
end

function server.life()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
  return run .. '/' .. server.replication() .. '/' .. shard[EPOCH]
end

-- The approval of a shard, nil if the server is not the one that was compared, or was rolled back since.
function server.approval(meta)
  local found = server.approvals[meta]
  if not found or sequence < found.sequence or shard[EPOCH] ~= found.epoch then return nil end
  if found.replication ~= server.replication() then return nil end
  return found
end

-- A shard that may have lost a part of its past hands nothing out: what it holds as waiting may have ended.
-- Whoever knows another generation than the `known` one, '' for none at all, has to look again, too.
local function must_be_sound(known)
  if shard[RECORD] then
    local found = server.approval(key.meta)
    if not found then
      error({err = 'UNSOUND this queue has a record, and nobody has compared them since the server began'})
    end
    if server.ms() > found.until_ms then
      error({err = 'UNSOUND nobody has asked the record lately whether another server took over'})
    end
    found.sequence = sequence
  end
  if known ~= '' and known ~= redis.call('HGET', key.meta, 'generation') then
    error({err = 'UNSOUND another generation of this queue has begun since generation ' .. known .. ' of its record'})
  end
end
