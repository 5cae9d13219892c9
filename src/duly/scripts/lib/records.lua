-- records: what the shard knows of one job, as one string.
--
-- mark      1 byte    state, lane, and which of the parts below are there
-- revision  8 bytes
-- request   6 bytes   of the call that made this revision: a replay is told by it
-- options   21 bytes  only if any was given
-- run       59+ bytes once the job has left its first `due` entry; ends with the worker's name and a zero byte
-- body      envelope and payload; in `bodies` instead when long, so that a transition never moves it
--
-- A job that waits for its first run costs 15 bytes beside its payload: `due` holds its time.
-- duly/records.py is the twin of this file; a test compares the two.

local SCHEDULED, READY, RUNNING, SUCCEEDED, DEAD, CANCELLED = 0, 1, 2, 3, 4, 5
local STATES = {[0] = 'scheduled', 'ready', 'running', 'succeeded', 'dead', 'cancelled'}
local SUSPECT = 3
local AWAITED, REPLACED, BODY_DROPPED, ERROR_KEPT = 1, 2, 4, 8
local VERBS = {ack = 1, retry = 2, bury = 3, release = 4, recover = 5}
local BASE, OPTIONS, RUN = '>BI8c6', '>I8I4I4BI4', '>I8HHI8I8c8BBI8I8I4s'
local BASE_BYTES, OPTIONS_BYTES, RUN_BYTES = 15, 21, 58
local DUE, ATTEMPTS, CRASHES, ENTRY, TOKEN, NONCE, VERB, MARKS, STARTED, ENDED, LATE, WORKER =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
local NO_NONCE = string.rep('\0', 8)
local UNKNOWN = 4294967295
local INLINE_BYTES = 1024

local encode, decode, cut, find, floor = struct.pack, struct.unpack, string.sub, string.find, math.floor

local function topic_of(member)
  -- A member without a slash is none of ours, and must not stop the line either.
  return cut(member, 1, (find(member, '/', 1, true) or #member + 1) - 1)
end

-- The parts of a record as plain values, for the paths that every job takes: a table for each would
-- double their cost.  mark, revision, request, where the run begins, then the run's fields in order and
-- where the body begins.  What waits for its first run has an empty one, and no due time but in `due`.
local function open(record)
  local mark, revision, request, at = decode(BASE, record)
  if mark % 64 >= 32 then at = at + OPTIONS_BYTES end
  if mark % 128 < 64 then
    return mark + 64, revision, request, at, 0, 0, 0, 0, 0, NO_NONCE, 0, 0, 0, 0, UNKNOWN, '', at
  end
  return mark, revision, request, at, decode(RUN, record, at)
end

-- The record again, with its options and body as they were and everything else as given.
local function reseal(record, mark, revision, request, at, due, attempts, crashes, entry, token, nonce, verb, marks,
    started, ended, late, worker, body_at)
  local options = ''
  if at > BASE_BYTES + 1 then options = cut(record, BASE_BYTES + 1, at - 1) end
  return encode(BASE, mark, revision, request) .. options
    .. encode(RUN, due, attempts, crashes, entry, token, nonce, verb, marks, started, ended, late, worker)
    .. cut(record, body_at)
end

-- What was asked for: when it expires, its time to run, how long it is kept, how many crashes it may have.
local function wishes_of(record, mark)
  if mark % 64 < 32 then return 0, 0, UNKNOWN, 0 end
  return decode(OPTIONS, record, BASE_BYTES + 1)
end

-- The same as a table, for the paths that are taken less often: names as fields, the run as numbered items.
local function read(member, record)
  local mark, revision, request, at = decode(BASE, record)
  local options = ''
  if mark % 64 >= 32 then
    options = cut(record, at, at + OPTIONS_BYTES - 1)
    at = at + OPTIONS_BYTES
  end
  local job = {
    member = member, state = mark % 8, lane = floor(mark / 8) % 4, revision = revision,
    request = request, options = options, apart = mark >= 128, body = '',
    nil, 0, 0, 0, 0, NO_NONCE, 0, 0, 0, 0, UNKNOWN, '',
  }
  -- While it waits for its first run `due` knows when, so job[DUE] is nil.
  if mark % 128 >= 64 then
    job[DUE], job[ATTEMPTS], job[CRASHES], job[ENTRY], job[TOKEN], job[NONCE], job[VERB], job[MARKS], job[STARTED],
      job[ENDED], job[LATE], job[WORKER], at = decode(RUN, record, at)
  end
  job.body = cut(record, at)
  return job
end

local function write(job)
  local mark = job.state + job.lane * 8
  if job.options ~= '' then mark = mark + 32 end
  if job.apart then mark = mark + 128 end
  if not job[DUE] then
    return encode(BASE, mark, job.revision, job.request) .. job.options .. job.body
  end
  return encode(BASE, mark + 64, job.revision, job.request) .. job.options
    .. encode(RUN, unpack(job, DUE, WORKER)) .. job.body
end

-- What of a record events keep: base and due while it waits for its first run, else base and run.
local function head_of(record, due_ms)
  local mark = string.byte(record)
  if mark % 128 < 64 then return cut(record, 1, BASE_BYTES) .. encode('>I8', due_ms) end
  if mark % 64 < 32 then return cut(record, 1, BASE_BYTES + RUN_BYTES) end
  local at = BASE_BYTES + OPTIONS_BYTES + 1
  return cut(record, 1, BASE_BYTES) .. cut(record, at, at + RUN_BYTES - 1)
end

-- Stands for a job in the events of a topic.
local NO_RECORD = encode(BASE, 0, 0, string.rep('\0', 6))

local function wishes(job)
  if job.options == '' then return 0, 0, UNKNOWN, 0 end
  return decode(OPTIONS, job.options)
end

-- The stream that a job waits in: suspects stand apart, whatever their priority.
local function lane_of(job)
  if job[CRASHES] > 0 then return SUSPECT end
  return job.lane
end

local function has_mark(job, mark)
  return bit.band(job[MARKS], mark) ~= 0
end

-- Records of `members` in their order; false where there is none.
local function fetch(members)
  if #members == 0 then return {} end
  local records = redis.call('HMGET', jobs, unpack(members))
  for at, record in ipairs(records) do
    if record then records[at] = read(members[at], record) end
  end
  return records
end

-- The job of a lease, or the word that says why not.  The same verb with the same token again is 'ok'.
local function held(job, token, nonce, verb)
  if not job then return nil, 'gone' end
  if job[TOKEN] ~= token or job[NONCE] ~= nonce then return nil, 'lost' end
  if job.state == RUNNING then return job end
  if job[VERB] == VERBS[verb] then return nil, 'ok' end
  return nil, 'lost'
end
