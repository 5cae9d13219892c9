-- lanes: the ready streams of each topic named in the call, and the list that wakes its workers.
--
-- Each topic brings five keys, in the order of its lanes: normal, high, low, suspect, then wake.

local WAKE = 4
local GROUP = 'duly'
local WAKE_TOKENS = 16
local first_key = {}

local function name_topic(topic, position)
  first_key[topic] = lanes_at + 5 * (position - 1)
end

local function stream(topic, lane)
  return KEYS[first_key[topic] + lane]
end

-- One token for each job, so that no more workers wake than there is work.
local function wake(topic, moved)
  local list = KEYS[first_key[topic] + WAKE]
  local tokens = math.min(moved, WAKE_TOKENS - redis.call('LLEN', list))
  if tokens <= 0 then return end
  local values = {}
  for at = 1, tokens do values[at] = '1' end
  redis.call('LPUSH', list, unpack(values))
end

local woken = {}

-- Put a job on its stream under a number of its own, which the record keeps.
local function line_up(job, topic, entry)
  job.state, job.entry = READY, entry
  redis.call('XADD', stream(topic, lane_of(job)), entry .. '-0', 'job', job.member, 'revision', job.revision)
  woken[topic] = (woken[topic] or 0) + 1
end

local function wake_topics()
  for topic, moved in pairs(woken) do wake(topic, moved) end
end

local entries = {}

-- Take the entry of a job off its stream: acknowledged and deleted in the same script as the outcome.
local function drop_entry(topic, lane, entry)
  local key = stream(topic, lane)
  local ids = entries[key]
  if not ids then
    ids = {}
    entries[key] = ids
  end
  ids[#ids + 1] = entry .. '-0'
end

local function write_entries()
  for key, ids in pairs(entries) do
    -- XACK of a group that is not there answers 0, so a flushed stream needs no special case.
    redis.call('XACK', key, GROUP, unpack(ids))
    redis.call('XDEL', key, unpack(ids))
  end
end
