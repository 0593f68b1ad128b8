-- The queue's one hash of counters and settings: read in one call, changed in one call by `commit`.
local FIELDS = {'v', 'now', 'lease', 'gap_end', 'epoch', 'paused', 'depth', 'seq', 'token', 'created',
  'succeeded', 'failed', 'cancelled', 'merged', 'anomalies', 'stale', 'dups', 'swept', 'revived',
  'events', 'limit'}
local meta, changed = {}, {}

local function note(field, value)
  meta[field] = value
  changed[field] = true
end

local function bump(field, by)
  local value = (number(meta[field]) or 0) + (by or 1)
  note(field, value)
  return value
end

-- For scripts that write: reads the clock, refuses foreign layouts, and notes a gap in which the
-- server was away or its clock jumped (see sweep: leases that lapsed in it get one more chance).
-- Every writing script notes gaps; if only exchange did, a dispatch right after an outage would hide it.
local function begin()
  local values = redis.call('HMGET', K.meta, unpack(FIELDS))
  for i, field in ipairs(FIELDS) do meta[field] = values[i] end
  if meta.v ~= PROTOCOL then
    if meta.v then return nil, refuse_version(meta.v) end
    changed.v = true
  end
  local last = number(meta.now) or 0
  local now = wall()
  if now <= last then return last end
  local lease = number(meta.lease)
  if last > 0 and lease and now - last > lease / 2 then note('gap_end', now) end
  note('now', now)
  return now
end

-- The last line of every script that writes.
local function commit()
  local words = {}
  for field in pairs(changed) do
    local value = meta[field]
    words[#words + 1] = field
    words[#words + 1] = field == 'v' and PROTOCOL or type(value) == 'number' and fmt(value) or value
  end
  if #words > 0 then redis.call('HSET', K.meta, unpack(words)) end
end

local function setting(field, default)
  return number(redis.call('HGET', K.meta, field)) or default
end

local function ring() redis.call('PUBLISH', K.meta .. ':bell', '1') end
