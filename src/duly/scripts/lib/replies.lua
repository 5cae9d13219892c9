-- replies: what became of jobs whose senders asked to be told, in queues by name.
--
-- A reply holds all that is told of the job, its record without the payload, so it does not matter what becomes of the
-- job afterwards.  It is an entry of
-- `replies`, where all queues stand in one order, that of the endings: the oldest is the first.  `reply_lines` has
-- '<name> <number>' for each, so that those of one name stand together; a space sorts before all that a name may hold.
--
-- A line without its entry is dropped when it is met.  An entry without its line goes when it is too old.

local REPLY_MS, REPLIES_KEPT, REPLY_BYTES, NAMES_COUNTED = 86400000, 10000, 268435456, 10000
local DROPPED_AT_ONCE, READ_AT_ONCE = 1000, 8
local answered = {}
-- What those use that hand replies out.
local reply_queue = {}

-- The queue that a body asks for: the first word of its envelope, so that nothing but text is compared here.
local function reply_name(body)
  return string.match(body or '', '^{"reply_to":"([%w._-]+)"')
end

local function reply(member, body, record, outcome)
  local name = reply_name(body)
  if not name then return end
  local mark = string.byte(record)
  local _, _, _, _, envelope_bytes = wishes_of(record, mark)
  local head = cut(record, 1, body_at(record, mark) - 1) .. cut(body, 1, envelope_bytes)
  answered[#answered + 1] = {name, take_numbers(1), member, head, outcome}
end

function reply_queue.line_of(name, number)
  return string.format('%s %016d', name, number)
end

function reply_queue.range_of(name)
  return '[' .. name .. ' ', '(' .. name .. '!'
end

-- Name, member, head and outcome of an entry, and what it weighs against the byte limit.
function reply_queue.read_reply(fields)
  local name, member, head, outcome = fields[2], fields[4], fields[6], fields[8]
  return name, member, head, outcome, 2 * #name + #member + #head + #outcome + 250
end

function reply_queue.find_reply(number)
  local id = string.format('%d-0', number)
  return redis.call('XRANGE', key.replies, id, id)[1]
end

-- Take a reply out of everything; the answer is what it weighed.
function reply_queue.remove_reply(line, number, entry)
  redis.call('ZREM', key.reply_lines, line)
  redis.call('ZREM', key.reply_leases, line)
  if not entry then return 0 end
  redis.call('XDEL', key.replies, string.format('%d-0', number))
  local _, _, _, _, weight = reply_queue.read_reply(entry[2])
  return weight
end

-- What is gone unread is counted: for its queue as long as that has not been empty, and for the shard.
local function drop_reply(line, number, entry)
  local name = string.match(line, '^%S+')
  if redis.call('HEXISTS', key.reply_drops, name) == 1 or redis.call('HLEN', key.reply_drops) < NAMES_COUNTED then
    redis.call('HINCRBY', key.reply_drops, name, 1)
  end
  redis.call('HINCRBY', key.meta, 'replies_dropped', 1)
  return reply_queue.remove_reply(line, number, entry)
end

function reply_queue.weigh_replies(bytes)
  if bytes == 0 then return end
  redis.call('HINCRBY', key.meta, 'reply_bytes', bytes)
  -- Whatever was counted wrong is right again at the latest when there are none.
  if redis.call('XLEN', key.replies) == 0 then redis.call('HSET', key.meta, 'reply_bytes', 0) end
end

-- Drop from the oldest on, as long as `is_over` says so of one; the answer is what they weighed, and how many they were.
local function drop_oldest(most, is_over)
  local weight, count = 0, 0
  while count < most do
    local oldest = redis.call('XRANGE', key.replies, '-', '+', 'COUNT', READ_AT_ONCE)
    for _, entry in ipairs(oldest) do
      local name, _, head = reply_queue.read_reply(entry[2])
      if count == most or not is_over(head, weight) then return weight, count end
      local number = tonumber(string.match(entry[1], '^%d+'))
      weight = weight + drop_reply(reply_queue.line_of(name, number), number, entry)
      count = count + 1
    end
    if #oldest < READ_AT_ONCE then return weight, count end
  end
  return weight, count
end

-- Drop replies that nobody took in time.
local function forget_replies(now_ms, most)
  local weight, count = drop_oldest(most, function(head) return decode(NUMBER, head, ENDED_AT) + REPLY_MS <= now_ms end)
  reply_queue.weigh_replies(-weight)
  return count
end

local function keep_newest(name, most)
  local from, to = reply_queue.range_of(name)
  local beyond = redis.call('ZLEXCOUNT', key.reply_lines, from, to) - most
  if beyond <= 0 then return 0 end
  local weight = 0
  for _, line in ipairs(redis.call('ZRANGE', key.reply_lines, from, to, 'BYLEX', 'LIMIT', 0, beyond)) do
    local number = tonumber(string.match(line, '%d+$'))
    weight = weight + drop_reply(line, number, reply_queue.find_reply(number))
  end
  return weight
end

-- Write the replies of this call; the answer is their names.  The bounds hold also where no pruner runs.
local function write_replies()
  local weight, names = 0, {}
  for _, each in ipairs(answered) do
    local name, number = each[1], each[2]
    redis.call('XADD', key.replies, string.format('%d-0', number), 'name', name, 'job', each[3], 'head', each[4],
      'outcome', each[5])
    redis.call('ZADD', key.reply_lines, 0, reply_queue.line_of(name, number))
    local _, _, _, _, bytes = reply_queue.read_reply({nil, name, nil, each[3], nil, each[4], nil, each[5]})
    weight, names[name] = weight + bytes, true
  end
  local about = redis.call('HMGET', key.meta, 'shards', 'reply_bytes')
  local shards, was = tonumber(about[1]), tonumber(about[2]) or 0
  for name in pairs(names) do weight = weight - keep_newest(name, math.ceil(REPLIES_KEPT / shards)) end
  local over = was + weight - floor(REPLY_BYTES / shards)
  if over > 0 then weight = weight - drop_oldest(DROPPED_AT_ONCE, function(_, gone) return gone < over end) end
  reply_queue.weigh_replies(weight)
  return names
end
