-- records: what the shard knows of one job, as one string.
--
-- A job that waits for its first run:  mark 1, revision 8, request 6 bytes, options, body; `due` holds its time.
-- Any other:  mark 1, run 66, revision 8, request 6 bytes, options, body.
--
-- mark      state, lane, and which of the parts are there
-- run       first what a run's end changes, then what its claim does: attempts 2, crashes 2, verb 1, marks 1,
--           entry 8, ended 8, late 4; token 8, nonce 8, worker 8, started 8; due 8
-- request   of the call that made this revision: a replay is told by it
-- options   23 bytes, only if any was given; then as many bytes of further parts as the last two of them say, each
--           a byte that names it, a byte for its length, and its value: a script carries along those it does not know;
--           1: when the job was accepted, 6 bytes of milliseconds, where its revision is a later one;
--           2: when it was due first, likewise, where a retry has given it another time
-- body      envelope and payload; in `bodies` instead when long, so that a transition never moves it
--
-- duly/records.py is the twin of this file; a test compares the two.
--
-- The paths that every job takes (enqueue, promote, claim, ack) cut and join these strings: to take each
-- record apart into a table and put it together again cost more than all commands of the script.

local SCHEDULED, READY, RUNNING, SUCCEEDED, DEAD, CANCELLED = 0, 1, 2, 3, 4, 5
local NORMAL, CALLBACK, SUSPECT, ISOLATED = 0, 3, 4, 5
local AWAITED, REPLACED, BODY_DROPPED, ERROR_KEPT, REPLY, HALF, RESULT_DROPPED = 1, 2, 4, 8, 16, 32, 64
local VERBS = {ack = 1, retry = 2, bury = 3, release = 4, recover = 5}
local CREATED, FIRST_DUE, MOST_PARTS = 1, 2, 65528
local NUMBER, BASE, OPTIONS = '>I8', '>BI8c6', '>I8I4I4BI4I2'
local START, RUN = '>BHHBBI8', '>BHHBBI8I8I4I8c8c8I8I8'
local BASE_BYTES, OPTIONS_BYTES, HEAD_BYTES = 15, 23, 81
local ENDED_AT, TOKEN_AT, STARTED_AT, DUE_AT, REVISION_AT, OPTIONS_AT = 16, 28, 52, 60, 68, 82
local ATTEMPTS, CRASHES, VERB, MARKS, ENTRY, ENDED, LATE, TOKEN, NONCE, WORKER, STARTED, DUE =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
local NOBODY = '\0\0\0\0\0\0\0\0'
local NOT_ENDED = '\0\0\0\0\0\0\0\0\255\255\255\255'
local NOT_CLAIMED = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
-- Stands for a job in the events of a topic.
local NO_RECORD = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local UNKNOWN, INLINE_BYTES = 4294967295, 1024

local encode, decode, cut, find, floor = struct.pack, struct.unpack, string.sub, string.find, math.floor

local function topic_of(member)
  -- A member without a slash is none of ours, and must not stop the line either.
  return cut(member, 1, (find(member, '/', 1, true) or #member + 1) - 1)
end

-- The number of a stream's entry, which is `<number>-0`.
local function number_of(id)
  return tonumber(cut(id, 1, -3))
end

-- What was asked for: when it expires, its time to run, how long it is kept, how many crashes it may have; then how many
-- bytes of the body are its envelope.
local function wishes_of(record, mark)
  if mark % 64 < 32 then return 0, 0, UNKNOWN, 0, 0 end
  return decode(OPTIONS, record, mark % 128 < 64 and BASE_BYTES + 1 or OPTIONS_AT)
end

-- How many bytes the options that begin at a place take, with the parts behind them.
local function options_bytes(record, at)
  local high, low = string.byte(record, at + OPTIONS_BYTES - 2, at + OPTIONS_BYTES - 1)
  return OPTIONS_BYTES + 256 * high + low
end

local function body_at(record, mark)
  local at = mark % 128 < 64 and BASE_BYTES + 1 or OPTIONS_AT
  return mark % 64 < 32 and at or at + options_bytes(record, at)
end

-- Whether a record holds what its mark says.  One that does not would fail every script that meets it.
local function is_whole(record)
  local size, mark = #record, string.byte(record)
  if size < BASE_BYTES or mark % 8 > CANCELLED then return false end
  if mark % 128 < 64 and mark % 64 < 32 then return mark % 8 == SCHEDULED end
  if mark % 128 < 64 and mark % 8 ~= SCHEDULED then return false end
  local at = mark % 128 < 64 and BASE_BYTES or HEAD_BYTES
  if mark % 64 < 32 then return size >= at end
  return size >= at + OPTIONS_BYTES and size >= at + options_bytes(record, at + 1)
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
    local size = options_bytes(record, at)
    job.options = cut(record, at, at + size - 1)
    at = at + size
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

-- The further parts of options: how old a job is, and when it was due first.
local ages = {bytes_of = options_bytes}
-- What a job says whose options are there for their parts alone.
local no_options = encode(OPTIONS, 0, 0, UNKNOWN, 0, 0, 0)

-- Give a job one of the further parts, in the place of the one that it has; nil for none.
function ages.set_part(job, name, ms)
  local options, parts = job.options == '' and no_options or job.options, ''
  local at = OPTIONS_BYTES + 1
  while at < #options do
    local its_name, size = string.byte(options, at, at + 1)
    if its_name ~= name then parts = parts .. cut(options, at, at + 1 + size) end
    at = at + 2 + size
  end
  if ms and #parts < MOST_PARTS then parts = parts .. encode('>BBI6', name, 6, ms) end
  options = cut(options, 1, OPTIONS_BYTES - 2) .. encode('>I2', #parts) .. parts
  job.options = options == no_options and '' or options
end

function ages.part_of(job, name)
  local options, at = job.options, OPTIONS_BYTES + 1
  while at < #options do
    local its_name, size = string.byte(options, at, at + 1)
    if its_name == name then return decode('>I6', options, at + 2) end
    at = at + 2 + size
  end
end

-- The options that a sender said, without further parts.
function ages.said_options(job)
  local said = {options = job.options}
  ages.set_part(said, CREATED)
  ages.set_part(said, FIRST_DUE)
  return said.options
end

function ages.created_of(job)
  return ages.part_of(job, CREATED) or floor(job.revision / 1000)
end

-- Before a job that was due gets another time without its sender asking for that.
function ages.keep_first_due(job)
  if not ages.part_of(job, FIRST_DUE) then ages.set_part(job, FIRST_DUE, job[DUE]) end
end

-- Give a job another revision: it stays as old as it is.
function ages.revise(job, revision, request)
  ages.set_part(job, CREATED, ages.created_of(job))
  job.revision, job.request = revision, request
end

local function wishes(job)
  if job.options == '' then return 0, 0, UNKNOWN, 0, 0 end
  return decode(OPTIONS, job.options)
end

-- The stream that a job waits in: one that crashed once is a suspect, one that crashed again runs isolated, whatever its
-- priority.  A callback is neither: it runs our own code, so a crash says nothing about it.
local function lane_in(mark, crashes)
  local lane = floor(mark / 8) % 4
  if crashes == 0 or lane == CALLBACK then return lane end
  return crashes == 1 and SUSPECT or ISOLATED
end

local function lane_of(job)
  return lane_in(job.lane * 8, job[CRASHES])
end

local function has_mark(job, mark)
  return bit.band(job[MARKS], mark) ~= 0
end

-- Jobs whose records are damaged, and those records: `commit` puts them aside.
local damage = {records = {}}

function damage.put_aside(member, record)
  local records = damage.records
  records[#records + 1] = member
  records[#records + 1] = record
end

-- Records of `members` in their order; false where there is none.
local function fetch(members)
  if #members == 0 then return {} end
  local records = redis.call('HMGET', key.jobs, unpack(members))
  for at, record in ipairs(records) do
    if record and is_whole(record) then
      records[at] = read(members[at], record)
    elseif record then
      damage.put_aside(members[at], record)
      records[at] = false
    end
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
