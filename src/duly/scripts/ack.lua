#!lua flags=allow-oom
-- ack: finish jobs that ran well.
--
-- moves    running -> succeeded
-- uses     clock records replies changes endings
-- KEYS     meta      hash    the shard's numbers
--          topics    hash    counters of topics
--          jobs      hash    member -> record
--          bodies    hash    member -> body too long for the record
--          outcomes  hash    member -> result or error
--          progress  hash    member -> last reported progress
--          quarantine  hash  member -> record that is damaged
--          leases    zset    member -> lease end
--          done      zset    succeeded and cancelled -> keep until
--          dead      zset    dead -> keep until
--          events    stream  what happened
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
--          ended_channel  channel  tells waiters that an awaited job ended
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          keep_ms   how long succeeded jobs are kept
--          topic_count  how many topics follow
--          topic...  their names; then for each job: member, fence, lateness_ms (4 bytes) with result
-- returns  'ok', 'lost' or 'gone' for each job
-- cost     O(jobs * log n)

local now = clock(now_ms)
local named = tonumber(topic_count)
local first = topic_at + named
local LATE_BYTES = 4
local members, words, total = {}, {}, 0
for at = first, #ARGV, 3 do
  total = total + 1
  members[total] = ARGV[at]
end
local default_ms, only, ended = tonumber(keep_ms), named == 1 and ARGV[topic_at], encode(NUMBER, now)

local records, closed, weight = redis.call('HMGET', jobs, unpack(members)), 0, 0

-- What it does to each job is `finish`, with the record cut and joined instead of taken apart.  Most runs begin alike up
-- to their end: what is read and written there is made once for all neighbours that do.
local begins, mark, attempts, crashes, verb, marks, start, stub, stub_marks
for at = 1, total do
  local member, arg, record = members[at], first + 3 * (at - 1), records[at]
  local word = 'gone'
  if record and (#record < HEAD_BYTES or string.byte(record) % 64 >= 32) and not is_whole(record) then
    damage.put_aside(member, record)
    record = false
  end
  if record then
    local its_beginning = cut(record, 1, ENDED_AT - 1)
    if its_beginning ~= begins then
      begins, start, stub_marks = its_beginning, nil, nil
      mark, attempts, crashes, verb, marks = decode(START, record)
    end
    if mark % 128 < 64 or find(record, ARGV[arg + 1], TOKEN_AT, true) ~= TOKEN_AT then
      word = 'lost'
    elseif mark % 8 ~= RUNNING then
      word = verb == VERBS.ack and 'ok' or 'lost'
    else
      word = 'ok'
      local topic, until_ms, rest = only or topic_of(member), default_ms, cut(record, TOKEN_AT)
      local late, outcome, body, its_marks, its_start = ARGV[arg + 2], '', nil, marks, nil
      if #late > LATE_BYTES then late, outcome = cut(late, 1, LATE_BYTES), cut(late, LATE_BYTES + 1) end
      local told, envelope_bytes = outcome, 0
      if marks % HALF >= REPLY then
        body = mark >= 128 and redis.call('HGET', bodies, member) or cut(record, body_at(record, mark))
      end
      if mark % 64 >= 32 then
        local _, _, retain, _, its_envelope = wishes_of(record, mark)
        if retain ~= UNKNOWN then until_ms = retain * 1000 end
        envelope_bytes = its_envelope
      end
      if until_ms == 0 then
        -- See `make_stub`.  The result stays where somebody waits for it, or the record may have to be told of it.
        its_marks = bit.bor(marks, BODY_DROPPED)
        if outcome ~= '' and marks % 2 ~= AWAITED and not shard[RECORD] then
          outcome, its_marks = '', bit.bor(its_marks, RESULT_DROPPED)
        end
        if its_marks ~= stub_marks then
          stub, stub_marks = encode(START, mark % 128 + 1, attempts + 1, crashes, 1, its_marks, 0), its_marks
        end
        its_start = stub
        local before_body = body_at(record, mark) - 1
        if mark < 128 then
          rest = cut(record, TOKEN_AT, before_body + envelope_bytes)
        else
          rest = cut(record, TOKEN_AT, before_body)
          if envelope_bytes > 0 then
            rest = rest .. cut(body or redis.call('HGET', bodies, member) or '', 1, envelope_bytes)
          end
          dropped_bodies[#dropped_bodies + 1] = member
        end
      else
        start = start or encode(START, mark + 1, attempts + 1, crashes, 1, marks, 0)
        its_start = start
      end
      record = its_start .. ended .. late .. rest
      if until_ms < STUB_MS then until_ms = STUB_MS end
      close(member, record, now + until_ms)
      note('acked', member, cut(record, 1, HEAD_BYTES))
      closed = closed + 1
      weight = weight + weight_of(member, record, outcome, mark >= 128 and its_marks % 8 < BODY_DROPPED)
      if its_marks > 0 or outcome ~= '' then say_ended(member, its_marks, outcome) end
      if body then reply(member, body, record, told) end
      if not only then
        count(topic, RUNNING, -1)
        count(topic, SUCCEEDED, 1)
      end
    end
  end
  words[at] = word
end
if only then
  count(only, RUNNING, -closed)
  count(only, SUCCEEDED, closed)
end
weigh_in(SUCCEEDED, weight)
commit(now, nonce)
return words
