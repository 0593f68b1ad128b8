-- A lease: token, its length, when it was taken, marks, the place in `ready` it was taken from, and the last
-- progress that was reported with a renewal, if any was.
-- CANCELLED: however it is settled, it ends as cancelled. ASKED: it is to end by itself, and its settle stands.
local STARTED, CANCELLED, EXTENDED, ASKED = 1, 2, 4, 8

local function pack_lease(token, length, taken, marks, score, progress)
  if progress then return cmsgpack.pack(token, length, taken, marks, score, progress) end
  return cmsgpack.pack(token, length, taken, marks, score)
end

local function read_lease(raw)
  local ok, token, length, taken, marks, score, progress = pcall(cmsgpack.unpack, raw)
  if not ok or type(token) ~= 'string' or not sane(length) or not sane(taken) or not sane(marks)
      or type(score) ~= 'number' or score ~= score or (progress ~= nil and type(progress) ~= 'string') then return nil end
  return {token = token, length = length, taken = taken, marks = marks, score = score, progress = progress}
end

local function put_lease(id, lease)
  redis.call('HSET', K.leases, id,
    pack_lease(lease.token, lease.length, lease.taken, lease.marks, lease.score, lease.progress))
end

local function get_lease(id)
  local raw = redis.call('HGET', K.leases, id)
  if not raw then return nil end
  local lease = read_lease(raw)
  if not lease then
    bump('anomalies')
    redis.call('HDEL', K.leases, id)
  end
  return lease
end

local function has(lease, mark) return bit.band(lease.marks, mark) ~= 0 end

local function set_mark(id, lease, mark)
  lease.marks = bit.bor(lease.marks, mark)
  put_lease(id, lease)
end
