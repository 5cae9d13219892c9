-- records: what the shard knows of one job, as one string.
--
-- A job that waits for its first run:  mark 1, revision 8, request 6 bytes, options, body; `due` holds its time.
-- Any other:  mark 1, run 66, revision 8, request 6 bytes, options, body.
--
-- mark      state, lane, and which of the parts are there
-- run       first what a run's end changes, then what its claim does: attempts 2, crashes 2, verb 1, marks 1,
--           entry 8, ended 8, late 4; token 8, nonce 8, worker 8, started 8; due 8
-- request   of the call that made this revision: a replay is told by it
-- options   21 bytes, only if any was given
-- body      envelope and payload; in `bodies` instead when long, so that a transition never moves it
--
-- duly/records.py is the twin of this file; a test compares the two.
--
-- The paths that every job takes (enqueue, promote, claim, ack) cut and join these strings: to take each
-- record apart into a table and put it together again cost more than all commands of the script.

local SCHEDULED, READY, RUNNING, SUCCEEDED, DEAD, CANCELLED = 0, 1, 2, 3, 4, 5
local STATES = {[0] = 'scheduled', 'ready', 'running', 'succeeded', 'dead', 'cancelled'}
local CALLBACK, SUSPECT = 3, 4
local AWAITED, REPLACED, BODY_DROPPED, ERROR_KEPT, REPLY = 1, 2, 4, 8, 16
local VERBS = {ack = 1, retry = 2, bury = 3, release = 4, recover = 5}
local NUMBER, BASE, OPTIONS = '>I8', '>BI8c6', '>I8I4I4BI4'
local START, RUN = '>BHHBBI8', '>BHHBBI8I8I4I8c8c8I8I8'
local BASE_BYTES, OPTIONS_BYTES, HEAD_BYTES = 15, 21, 81
local ENDED_AT, TOKEN_AT, STARTED_AT, DUE_AT, REVISION_AT, OPTIONS_AT = 16, 28, 52, 60, 68, 82
local ATTEMPTS, CRASHES, VERB, MARKS, ENTRY, ENDED, LATE, TOKEN, NONCE, WORKER, STARTED, DUE =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
local NOBODY = string.rep('\0', 8)
local UNKNOWN = 4294967295
local NOT_ENDED = NOBODY .. '\255\255\255\255'
local NOT_CLAIMED = string.rep(NOBODY, 4)
local INLINE_BYTES = 1024

local encode, decode, cut, find, floor = struct.pack, struct.unpack, string.sub, string.find, math.floor

local function topic_of(member)
  -- A member without a slash is none of ours, and must not stop the line either.
  return cut(member, 1, (find(member, '/', 1, true) or #member + 1) - 1)
end

-- The number of a stream's entry, which is `<number>-0`.
local function number_of(id)
  return tonumber(cut(id, 1, -3))
end

-- As good as none.
local NO_OPTIONS = encode(OPTIONS, 0, 0, UNKNOWN, 0, 0)

-- What was asked for: when it expires, its time to run, how long it is kept, how many crashes it may have.
local function wishes_of(record, mark)
  if mark % 64 < 32 then return 0, 0, UNKNOWN, 0 end
  return decode(OPTIONS, record, mark % 128 < 64 and BASE_BYTES + 1 or OPTIONS_AT)
end

local function body_at(mark)
  return (mark % 128 < 64 and BASE_BYTES + 1 or OPTIONS_AT) + (mark % 64 < 32 and 0 or OPTIONS_BYTES)
end

-- A record as a table, for the paths that are taken less often: names as fields, the run as numbered items.
local function read(member, record)
  local mark = string.byte(record)
  local at, revision, request = 2, nil, nil
  local job = {
    member = member, state = mark % 8, lane = floor(mark / 8) % 4, apart = mark >= 128, options = '',
    0, 0, 0, 0, 0, 0, UNKNOWN, 0, NOBODY, NOBODY, 0, nil,
  }
  -- While it waits for its first run `due` knows when, so job[DUE] is nil.
  if mark % 128 >= 64 then
    mark, job[ATTEMPTS], job[CRASHES], job[VERB], job[MARKS], job[ENTRY], job[ENDED], job[LATE], job[TOKEN], job[NONCE],
      job[WORKER], job[STARTED], job[DUE], at = decode(RUN, record)
  end
  revision, request, at = decode('>I8c6', record, at)
  job.revision, job.request = revision, request
  if mark % 64 >= 32 then
    job.options = cut(record, at, at + OPTIONS_BYTES - 1)
    at = at + OPTIONS_BYTES
  end
  job.body = cut(record, at)
  return job
end

local function write(job)
  local mark = job.state + job.lane * 8
  if job.options ~= '' then mark = mark + 32 end
  if job.apart then mark = mark + 128 end
  local rest = job.options .. job.body
  if not job[DUE] then return encode(BASE, mark, job.revision, job.request) .. rest end
  return encode(RUN, mark + 64, unpack(job, ATTEMPTS, DUE)) .. encode('>I8c6', job.revision, job.request) .. rest
end

-- What of a record events keep: all but options and body; its due time where the record does not hold it.
local function head_of(record, due_ms)
  if string.byte(record) % 128 >= 64 then return cut(record, 1, HEAD_BYTES) end
  return cut(record, 1, BASE_BYTES) .. encode(NUMBER, due_ms)
end

-- Stands for a job in the events of a topic.
local NO_RECORD = encode(BASE, 0, 0, '\0\0\0\0\0\0')

local function wishes(job)
  if job.options == '' then return 0, 0, UNKNOWN, 0 end
  return decode(OPTIONS, job.options)
end

-- The stream that a job waits in: suspects stand apart, whatever their priority.  A callback is none: it runs our own
-- code, so a crash says nothing about it.
local function lane_in(mark, crashes)
  local lane = floor(mark / 8) % 4
  if crashes > 0 and lane ~= CALLBACK then return SUSPECT end
  return lane
end

local function lane_of(job)
  return lane_in(job.lane * 8, job[CRASHES])
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

-- The token of a lease as it travels: counter and nonce, 16 bytes.
local function fence_of(record)
  return cut(record, TOKEN_AT, TOKEN_AT + 15)
end

-- The job of a lease, or the word that says why not.  The same verb with the same token again is 'ok'.
local function held(job, fence, verb)
  if not job then return nil, 'gone' end
  if encode('>I8c8', job[TOKEN], job[NONCE]) ~= fence then return nil, 'lost' end
  if job.state == RUNNING then return job end
  if job[VERB] == VERBS[verb] then return nil, 'ok' end
  return nil, 'lost'
end
