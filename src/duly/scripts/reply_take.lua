#!lua flags=allow-oom
-- reply_take: lease replies of one queue to a reader, oldest first, or show them.
--
-- moves    nothing
-- uses     clock records replies
-- KEYS     meta      hash    the shard's numbers
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
-- ARGV     now_ms    '' means the server's clock
--          name      of the queue
--          limit     at most this many
--          max_bytes about this many bytes of outcomes at most
--          lease_ms  how long they are kept from other readers; 0: they are only shown
-- returns  {replies of this queue that were dropped unread, {number, member, head, outcome, ...},
--          1 if more were left out for their size, else 0}
-- cost     O((limit + replies handed out before them) * log n)

local PAGE = 128
local now = clock(now_ms)
forget_replies(now, READ_AT_ONCE)
local over = redis.call('ZRANGE', reply_leases, '-inf', now, 'BYSCORE', 'LIMIT', 0, PAGE)
if #over > 0 then redis.call('ZREM', reply_leases, unpack(over)) end

local from, to = reply_queue.range_of(name)
local taken, left, bytes, until_ms = {}, tonumber(limit), tonumber(max_bytes), now + tonumber(lease_ms)
local cut = 0

-- Lease one if it still fits into the answer; one always does.
local function take(line)
  local number = tonumber(string.match(line, '%d+$'))
  local entry = reply_queue.find_reply(number)
  if not entry then return reply_queue.remove_reply(line, number) end
  local _, member, head, outcome, weight = reply_queue.read_reply(entry[2])
  if weight > bytes and #taken > 0 then
    left, cut = 0, 1
    return
  end
  local at = #taken
  taken[at + 1], taken[at + 2], taken[at + 3], taken[at + 4] = number, member, head, outcome
  if until_ms > now then redis.call('ZADD', reply_leases, until_ms, line) end
  left, bytes = left - 1, bytes - weight
end

local seen = 0
while left > 0 do
  local lines = redis.call('ZRANGE', reply_lines, from, to, 'BYLEX', 'LIMIT', 0, PAGE)
  if #lines == 0 then break end
  seen = seen + #lines
  local held = redis.call('ZMSCORE', reply_leases, unpack(lines))
  for at = 1, #lines do
    if left > 0 and not (held[at] and tonumber(held[at]) > now) then take(lines[at]) end
  end
  from = '(' .. lines[#lines]
  if #lines < PAGE then break end
end

local dropped = tonumber(redis.call('HGET', reply_drops, name)) or 0
-- Told, and nothing is left that it could be said with: forgotten.
if seen == 0 and dropped > 0 and until_ms > now then redis.call('HDEL', reply_drops, name) end
return {dropped, taken, cut}
