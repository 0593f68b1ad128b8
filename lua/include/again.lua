-- How a run goes back to wait: counted by its kind, merged with a dispatch that was blocked by it.
local COUNTER = {error = 'r', timeout = 't', cpu = 't', memory = 't', crash = 'c', stall = 's', lost = 'd'}
-- Which limit it was: the next attempt may have more of what was too little, and no more of the rest.
local HIT = {timeout = 'T', cpu = 'C', memory = 'M'}
local MAX_ATTEMPTS, MAX_LOST = 100, 20

local function clamp(x, lo, hi)
  if lo and x < lo then x = lo end
  if hi and x > hi then x = hi end
  return x
end

-- at: when it may run again; score: its old place, or nil to join at the end.
local function put_back(id, payload, created, ext, at, now, score)
  local raw = redis.call('HGET', K.next, id)
  if raw then
    redis.call('HDEL', K.next, id)
    redis.call('ZREM', K.blocked, id)
    redis.call('ZREM', K.expiring, id)
    local np, _, nx = unpack_record(raw)
    if np then
      if nx.D then payload = np end
      if nx.R then reset_counts(ext) end
      if nx.O then
        if priority(nx) ~= priority(ext) then score = nil end
        ext.o, ext.p, ext.x, ext.m, ext.y, ext.f = nx.o, nx.p, nx.x, nx.m, nx.y, nx.f
      end
      at = clamp(at, nx.l, nx.h)
      ext.g = nx.g
      ext.q = join_requests(ext.q, nx.q)
      bump('merged')
    else
      quarantine(id, raw)
    end
  end
  redis.call('HDEL', K.leases, id)
  redis.call('ZREM', K.active, id)
  ext.u = at ~= created and at or nil
  redis.call('HSET', K.jobs, id, pack_record(payload, created, ext))
  if place(id, created, ext, now, score) then ring() end
end

-- One more put-back of this kind. Answers false when the total cap says that it is enough.
local function count(ext, kind)
  local field = COUNTER[kind]
  if kind ~= 'lost' then
    if (ext.a or 0) + 1 >= MAX_ATTEMPTS then return false end
    ext.a = (ext.a or 0) + 1
  end
  ext[field] = (ext[field] or 0) + 1
  local hit = HIT[kind]
  if hit then ext[hit] = (ext[hit] or 0) + 1 end
  return true
end
