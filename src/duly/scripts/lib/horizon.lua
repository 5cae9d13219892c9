-- horizon: jobs that wait in a table far from here, and may be known there or not at all.

local MAX_OVERRIDES = 1000000

-- What stands of a change to a job that this shard does not know: nil where it has no table of far-future jobs.
local function cold(member)
  if not redis.call('HGET', key.meta, 'horizon') then return nil end
  local standing = redis.call('HGET', key.overrides, member) or ''
  -- Brought here before its time, and gone since: it was no longer in the table.
  if standing == 'moved' then return nil end
  if standing == '' and redis.call('HLEN', key.overrides) >= MAX_OVERRIDES then
    error({err = 'ERR too many changes wait for far-future jobs that are not found; run duly pipeline hydrate'})
  end
  return standing
end
