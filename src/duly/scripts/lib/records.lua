-- records: what the shard knows of one job, as one string.
--
-- mark      1 byte    state, lane, and which of the parts below are there
-- revision  8 bytes
-- request   6 bytes   of the call that made this revision: a replay is told by it
-- options   21 bytes  only if any was given
-- run       70+ bytes once the job has left its first `due` entry
-- body      envelope and payload; in `bodies` instead when long, so that a transition never moves it
--
-- A job that waits for its first run costs 15 bytes beside its payload: `due` holds its time.
-- duly/records.py is the twin of this file; a test compares the two.

local SCHEDULED, READY, RUNNING, SUCCEEDED, DEAD, CANCELLED = 0, 1, 2, 3, 4, 5
local STATES = {[0] = 'scheduled', 'ready', 'running', 'succeeded', 'dead', 'cancelled'}
local SUSPECT = 3
local AWAITED, REPLACED, BODY_DROPPED = 1, 2, 4
local BASE, OPTIONS, RUN = '>BI8c6', '>I8I4I4BI4', '>I8HHI8I8c8BBI8I8I4B'
local OPTIONS_BYTES = 21
local NO_NONCE = string.rep('\0', 8)
local UNKNOWN = 4294967295
local INLINE_BYTES = 1024

local function topic_of(member)
  return string.sub(member, 1, string.find(member, '/', 1, true) - 1)
end

local function read(member, record)
  local mark, revision, request, at = struct.unpack(BASE, record)
  local job = {
    member = member, revision = revision, request = request,
    state = bit.band(mark, 7), lane = bit.band(bit.rshift(mark, 3), 3), apart = mark >= 128,
    options = '', expires = 0, ttr = 0, retain = UNKNOWN, max_crashes = 0,
    attempts = 0, crashes = 0, entry = 0, token = 0, nonce = NO_NONCE, verb = 0, marks = 0,
    started = 0, ended = 0, late = UNKNOWN, worker = '',
  }
  if bit.band(mark, 32) ~= 0 then
    job.options = string.sub(record, at, at + OPTIONS_BYTES - 1)
    job.expires, job.ttr, job.retain, job.max_crashes = struct.unpack(OPTIONS, record, at)
    at = at + OPTIONS_BYTES
  end
  if bit.band(mark, 64) ~= 0 then
    local size
    job.due, job.attempts, job.crashes, job.entry, job.token, job.nonce, job.verb, job.marks,
      job.started, job.ended, job.late, size, at = struct.unpack(RUN, record, at)
    job.worker = string.sub(record, at, at + size - 1)
    at = at + size
  end
  job.body = string.sub(record, at)
  return job
end

-- A job without `due` is one that waits for its first run.
local function write(job)
  local mark = job.state + job.lane * 8
  if job.options ~= '' then mark = mark + 32 end
  if job.apart then mark = mark + 128 end
  if not job.due then
    return struct.pack(BASE, mark, job.revision, job.request) .. job.options .. job.body
  end
  return struct.pack(BASE, mark + 64, job.revision, job.request) .. job.options
    .. struct.pack(RUN, job.due, job.attempts, job.crashes, job.entry, job.token, job.nonce, job.verb, job.marks,
      job.started, job.ended, job.late, #job.worker) .. job.worker .. job.body
end

-- The stream that a job waits in: suspects stand apart, whatever their priority.
local function lane_of(job)
  if job.crashes > 0 then return SUSPECT end
  return job.lane
end

local function has_mark(job, mark)
  return bit.band(job.marks, mark) ~= 0
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

local puts = {}

local function put(job)
  puts[#puts + 1] = job.member
  puts[#puts + 1] = write(job)
end

local function write_records()
  if #puts > 0 then redis.call('HSET', jobs, unpack(puts)) end
end
