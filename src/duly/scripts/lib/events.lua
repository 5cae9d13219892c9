-- events: what happened to which job, one packed entry per script call.
--
-- A row is a line of tab-separated words: verb, job, revision, attempt, due_ms, lateness_ms, run_ms, worker, reason.
-- Entry ids are dense, `<counter>-0`; `rows` and `bytes` grow for ever, so what a trim removed is a subtraction.

local rows = {}

local function event(verb, job, attempt, due, late, run, worker, reason)
  rows[#rows + 1] = table.concat({
    verb, job.member, job.revision, attempt or '', due or '', late or '', run or '', worker or '', reason or '',
  }, '\t')
end

-- Remove the oldest entries, up to and including the one with counter `last` at most; keep the newest.
local function trim(oldest, last)
  local upto, at_rows, at_bytes
  for _, entry in ipairs(oldest) do
    local counter = tonumber(string.match(entry[1], '^%d+'))
    if counter > last then break end
    upto, at_rows, at_bytes = counter, entry[2][8], entry[2][10]
  end
  if not upto then return 0 end
  redis.call('HSET', meta, 'trimmed', upto, 'trimmed_rows', at_rows, 'trimmed_bytes', at_bytes)
  return redis.call('XTRIM', events, 'MINID', (upto + 1) .. '-0')
end

local function emit(now_ms, nonce)
  if #rows == 0 then return end
  local lines = table.concat(rows, '\n')
  local was = redis.call('HMGET', meta, 'epoch', 'events', 'event_rows', 'event_bytes',
    'trimmed_rows', 'trimmed_bytes', 'max_event_rows', 'max_event_bytes')
  local counter = (tonumber(was[2]) or 0) + 1
  local row_total = (tonumber(was[3]) or 0) + #rows
  local byte_total = (tonumber(was[4]) or 0) + #lines + 120
  redis.call('XADD', events, counter .. '-0', 'at', now_ms, 'epoch', was[1], 'nonce', nonce,
    'rows', row_total, 'bytes', byte_total, 'jobs', lines)
  redis.call('HSET', meta, 'events', counter, 'event_rows', row_total, 'event_bytes', byte_total)
  -- The bound is hard: it holds also where no pruner runs and whoever has not read yet.
  if row_total - (tonumber(was[5]) or 0) > tonumber(was[7]) or byte_total - (tonumber(was[6]) or 0) > tonumber(was[8]) then
    trim(redis.call('XRANGE', events, '-', '+', 'COUNT', 4), counter - 1)
  end
end
