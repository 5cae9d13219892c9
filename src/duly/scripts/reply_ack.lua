#!lua flags=allow-oom
-- reply_ack: forget replies of one queue that their reader is done with, whoever holds them.
--
-- moves    nothing
-- uses     clock records replies
-- KEYS     meta      hash    the shard's numbers
--          replies   stream  replies of all queues, in the order of their endings
--          reply_lines   zset    '<name> <number>' of each reply
--          reply_leases  zset    those handed out -> lease end
--          reply_drops   hash    name -> replies dropped unread
-- ARGV     name      of the queue
--          number... of the replies
-- returns  how many of them were there
-- cost     O(replies * log n)

local gone, weight = 0, 0
for at = number_at, #ARGV do
  local number = tonumber(ARGV[at])
  local line = reply_queue.line_of(name, number)
  -- A number may be that of another queue's reply: the line is what counts.
  if redis.call('ZSCORE', reply_lines, line) then
    weight = weight + reply_queue.remove_reply(line, number, reply_queue.find_reply(number))
    gone = gone + 1
  end
end
reply_queue.weigh_replies(-weight)
if gone > 0 then
  local from, to = reply_queue.range_of(name)
  if redis.call('ZLEXCOUNT', reply_lines, from, to) == 0 then redis.call('HDEL', reply_drops, name) end
end
return gone
