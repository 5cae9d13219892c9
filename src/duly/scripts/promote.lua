#!lua flags=allow-oom
-- promote: move due jobs of the named topics to their ready streams, each topic its part of `limit`, earliest due first.
--
-- moves    scheduled, due -> ready; scheduled, too late to start -> cancelled
-- uses     clock records replies changes endings promotion shares timers
-- KEYS     (queue)           everything that a transition may touch
--          (replies)         what became of jobs whose senders asked to be told
--          lanes...  stream  eight keys for each topic, see lib/changes.lua
-- ARGV     now_ms    '' means the server's clock
--          nonce     of the event entry
--          limit     at most this many in one call
--          keep_ms   how long an expired job is kept
--          name      of the timer that asks, '' for none
--          role      leader, follower or auto
--          check     '1' to look, too, whether ready jobs wait that nobody comes for, in some topics; '2' in those named
--          topic...  topics whose streams are in KEYS
-- returns  {now_ms, moved, next_due_ms, next_lease_ms, rank of this timer, how many others hold a slot,
--          topics due or ready but not named, '1' if there is more that is due, named topics whose workers were woken again,
--          topics that are due next, microseconds beyond now_ms}
-- cost     O(limit * log n + topics)

local DUE_TOPICS, NEXT_TOPICS, CHECKED_TOPICS = 64, 8, 16

local now, _, micros = clock(now_ms)
local most = tonumber(limit)
for at = topic_at, #ARGV do name_topic(ARGV[at], at - topic_at + 1) end

local due_topics = redis.call('ZRANGE', next_due, '-inf', now, 'BYSCORE', 'LIMIT', 0, DUE_TOPICS, 'WITHSCORES')
local named, unnamed, more, looked_after = {}, {}, #due_topics == 2 * DUE_TOPICS and '1' or '0', false
for at = 1, #due_topics, 2 do
  local topic, is_fresh = due_topics[at], tonumber(due_topics[at + 1]) > now - SHARE_MS
  if is_fresh and is_looked_after(redis.call('HGET', topics, topic .. ':waiting') or '', now) then
    -- A worker that waits for it comes by itself, and what it takes starts a step earlier; unless it has died.
    looked_after = true
  else
    local list = first_key[topic] and named or unnamed
    list[#list + 1] = topic
  end
end

local moved = 0
local function move(member, topic, record, due_ms)
  promote(member, topic, record, due_ms, take_numbers(1))
  moved = moved + 1
end

-- None waits behind another's herd: each has its part, and what one leaves is for those behind it.
local left = most
for at, topic in ipairs(named) do
  local part = math.ceil(left / (#named - at + 1))
  local found = part > 0 and for_each_due(topic, now, part, tonumber(keep_ms), move) or 0
  left = left - found
  if found == part then more = '1' end
end

-- How many waiters could take a job of the topic.
local function count_waiters(waiting, now_ms)
  local number = 0
  for at = 1, #waiting - WAITER_BYTES + 1, WAITER_BYTES do
    local _, until_ms, free = decode(WAITER, waiting, at)
    if until_ms > now_ms and free % LOOKS > 0 then number = number + 1 end
  end
  return number
end

-- Ready jobs and nobody on the way to them: the worker that was woken may have died before it came.
local again, checked = {}, check == '1' and redis.call('SRANDMEMBER', ready_topics, CHECKED_TOPICS) or {}
for at = topic_at, check == '2' and #ARGV or 0 do
  if redis.call('SISMEMBER', ready_topics, ARGV[at]) == 1 then checked[#checked + 1] = ARGV[at] end
end
for _, topic in ipairs(checked) do
  if not first_key[topic] then
    unnamed[#unnamed + 1] = topic
  elseif not woken[topic] then
    local about = redis.call('HMGET', topics, topic .. ':paused', topic .. ':callback', topic .. ':waiting')
    if not about[1] and not about[2] and redis.call('LLEN', KEYS[first_key[topic] + WAKE]) == 0 then
      -- Whoever is first in line may be dead as well: one token for each that says it waits.
      woken[topic] = math.max(1, count_waiters(about[3] or '', now))
      again[#again + 1] = topic
    end
  end
end
commit(now, nonce)
for topic, tokens in pairs(woken) do wake(topic, tokens) end
for topic in pairs(called) do call_deliverers(topic) end
tell_broad(now)
local rank, peers = hold_timer(name, role, now)
local soon = redis.call('ZRANGE', next_due, 0, NEXT_TOPICS - 1)
local next_ms = first_score(next_due)
-- What is left to others is looked at again when they should have come.
if looked_after and more == '0' and not unnamed[1] and next_ms ~= '' then
  next_ms = string.format('%d', math.max(tonumber(next_ms), now + SHARE_MS))
end
return {now, moved, next_ms, first_score(leases), rank, peers, unnamed, more, again, soon, micros}
