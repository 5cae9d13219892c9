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

-- Shards with a record that were compared with it since this server began, and how far they have come.
-- It is in memory only, so a server that was started again, from whatever it has on disk, is not among them.
local sound = {}
-- Names of this life of the server, for who compares; in memory only, too.
local lives = {}

-- A shard that may have lost a part of its past hands nothing out: what it holds as waiting may have ended.
-- Who knows of a former `known` generation only, '' for none at all, has to look again, too.
local function must_be_sound(known)
  if shard[RECORD] then
    if sequence < (sound[key.meta] or math.huge) then
      error({err = 'UNSOUND this queue has a record, and nobody has compared them since the server began'})
    end
    sound[key.meta] = sequence
  end
  if known ~= '' and known ~= redis.call('HGET', key.meta, 'generation') then
    error({err = 'UNSOUND this queue has lost a part of its memory since generation ' .. known .. ' of its record'})
  end
end
