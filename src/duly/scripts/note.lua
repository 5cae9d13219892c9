#!lua
-- note: keep something of a request that may be sent again, and tell what was kept there before.
--
-- moves    nothing
-- uses     clock
-- KEYS     meta      hash    the shard's numbers
--          idempotency_bytes  hash  end of a span of time -> bytes of what is kept until then
--          entry...  string  of one request: when it was made, 16 digits of milliseconds, then what is kept;
--                    behind it the hash of its caller: like idempotency_bytes, of its own entries
-- ARGV     now_ms    '' means the server's clock
--          how       'first' if nothing is kept yet, 'more' behind what is kept, unless that differs from its very
--                    beginning on, 'over' what is kept from there on, 'all' instead of what is kept
--          place     of the first byte, from 0 on
--          keep_ms   how long, from the first call on
--          most      bytes that all entries of the shard may take
--          data      what is to be kept
-- returns  {when the entry was made, 0 if by this call; what was kept there before}, or if the caller has taken its
--          share of the room {'full', milliseconds until the first of its entries are forgotten}
-- cost     O(bytes)

-- An entry takes its name, its value, and what the server needs beside them: the object, two places in tables,
-- and what the allocator rounds up.  Lines are counted twice, because the server makes room for as many again.
local SINCE_BYTES, ENTRY_BYTES = 16, 192
-- No more spans at once than a small hash may have, however long entries are kept.
local SPANS, SHORTEST_MS = 100, 1000

local now, entry, share, from = clock(now_ms), KEYS[entry_at], KEYS[entry_at + 1], SINCE_BYTES + place

local function count(bytes, until_ms)
  local span = math.max(math.ceil(keep_ms / SPANS), SHORTEST_MS)
  local ends = until_ms - until_ms % span + span
  redis.call('HINCRBY', idempotency_bytes, string.format('%d', ends), bytes)
  redis.call('HINCRBY', share, string.format('%d', ends), bytes)
  if redis.call('PTTL', share) < ends - now then redis.call('PEXPIRE', share, ends - now) end
end

-- Bytes of what is still kept, and when the first of them are forgotten.
local function counted(hash)
  local total, first, spans = 0, math.huge, redis.call('HGETALL', hash)
  for at = 1, #spans, 2 do
    local ends = tonumber(spans[at])
    if ends <= now then
      redis.call('HDEL', hash, spans[at])
    else
      total, first = total + spans[at + 1], math.min(first, ends)
    end
  end
  return total, first
end

local made = redis.call('GETRANGE', entry, 0, SINCE_BYTES - 1)
if how == 'over' or how == 'all' then
  -- Of an entry whose time is over nothing is kept.
  if made ~= '' and how == 'over' then redis.call('SETRANGE', entry, from, data) end
  if made ~= '' and how == 'all' then
    local added = SINCE_BYTES + #data - redis.call('STRLEN', entry)
    redis.call('SET', entry, made .. data, 'KEEPTTL')
    if made + keep_ms > now then count(added, made + keep_ms) end
  end
  return {tonumber(made) or 0, ''}
end
local kept = made ~= '' and redis.call('GETRANGE', entry, from, how == 'first' and -1 or from + #data - 1) or ''

-- Lines of a batch, eight bytes each.  The last bit says that the job was stored.  One that was wrong may be corrected.
local WRONG = string.rep('\253', 7) .. '\252'

local function is_another()
  for at = 8, #kept, 8 do
    if string.sub(kept, at - 7, at) ~= WRONG and (string.sub(kept, at - 7, at - 1) ~= string.sub(data, at - 7, at - 1)
      or bit.band(string.byte(kept, at), 254) ~= bit.band(string.byte(data, at), 254)) then return true end
  end
end

-- Of a batch that is refused nothing is kept.
if made ~= '' and (how == 'first' or #kept == #data or (place == '0' and is_another())) then
  return {tonumber(made), kept}
end

local added = (#data - #kept) * (how == 'more' and 2 or 1)
if made == '' then added = added + ENTRY_BYTES + #entry + SINCE_BYTES end
local all, first = counted(idempotency_bytes)
local own, own_first = counted(share)
-- No caller has more than what is left for the others: one alone half, each of two a third, and a new one finds room.
if own + added > most - all - added then
  return {'full', math.max(1, (own > 0 and own_first or math.min(first, now + keep_ms)) - now)}
end
count(added, (tonumber(made) or now) + keep_ms)
if made == '' then
  redis.call('SETRANGE', entry, 0, string.format('%016d', now))
  redis.call('PEXPIRE', entry, keep_ms)
end
redis.call('SETRANGE', entry, from + #kept, string.sub(data, #kept + 1))
return {tonumber(made) or 0, kept}
