-- topics: counters of a topic by state, kept in the `topics` hash as '<topic>:<state>'.

local changes = {}

local function count(topic, state, change)
  local of_topic = changes[topic]
  if not of_topic then
    of_topic = {}
    changes[topic] = of_topic
  end
  of_topic[state] = (of_topic[state] or 0) + change
end

local function write_counts()
  for topic, of_topic in pairs(changes) do
    for state, change in pairs(of_topic) do
      if change ~= 0 then redis.call('HINCRBY', topics, topic .. ':' .. STATES[state], change) end
    end
  end
end
