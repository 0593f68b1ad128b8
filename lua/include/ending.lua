-- The ended record that replaces a job, with its time to live, and the end of runs that never started.
local ENDED = {s = 'succeeded', f = 'failed', c = 'cancelled'}
local RESULT_TTL = 3600000
local FOREVER = 9007199254740991

local function expiry(now, ttl) if ttl < 0 then return FOREVER end return now + ttl end

local function forget_ended(id)
  if redis.call('HDEL', K.ended, id) == 1 then
    redis.call('ZREM', K.succeeded, id)
    redis.call('ZREM', K.failed, id)
    redis.call('ZREM', K.cancelled, id)
  end
end

-- A record that may be gone before the last resend of its dispatch comes is remembered beyond its end.
local function remember_short(id, ttl, ext)
  if ttl >= 0 and ttl < 2 * SPAN then remember(id, ext.q or '') end
end

-- Dropped by hand: the record goes, and a resend of its dispatch is still known as one.
local function drop_ended(id)
  local ok, _, _, _, _, _, ext = pcall(cmsgpack.unpack, redis.call('HGET', K.ended, id) or '')
  forget_ended(id)
  remember(id, ok and type(ext) == 'table' and type(ext.q) == 'string' and ext.q or recall(id) or '')
end

-- The ended record: state, generation, ended at, body (result or error), created, the rest as a table.
-- Arguments stay with a failure only: a dead letter can be retried, a success needs them no more.
local function write_ended(id, state, now, ttl, body, created, ext)
  forget_ended(id)
  remember_short(id, ttl, ext)
  tell(id)
  if ttl == 0 then return end
  redis.call('HSET', K.ended, id, cmsgpack.pack(state, ext.g or 0, now, body, created, ext))
  redis.call('ZADD', K[ENDED[state]], fmt(expiry(now, ttl)), id)
end

-- A waiting run that will never start. A blocked one lends its generation to the run in its way, so
-- that a handle on it ends when that run does.
local function end_waiting(id, raw, why, now)
  local is_blocked = redis.call('HEXISTS', K.leases, id) == 1
  displace(id)
  redis.call('HDEL', is_blocked and K.next or K.jobs, id)
  local payload, created, ext = unpack_record(raw)
  if not payload then return quarantine(id, raw) end
  bump('cancelled')
  if is_blocked then
    tell(id)
    local running = redis.call('HGET', K.jobs, id)
    local rp, rc, rx = unpack_record(running or '')
    if rp then
      rx.g = ext.g
      rx.q = join_requests(rx.q, ext.q)
      redis.call('HSET', K.jobs, id, pack_record(rp, rc, rx))
    end
    return
  end
  happened('cancelled', id)
  write_ended(id, 'c', now, ext.y or setting('result_ttl', RESULT_TTL), why, created, ext)
end

-- Bounded, and at least twice what one exchange can add, so that the ended never pile up.
local function trim(now, limit)
  for _, state in pairs(ENDED) do
    local ids = redis.call('ZRANGEBYSCORE', K[state], '-inf', fmt(now), 'LIMIT', 0, limit)
    if #ids > 0 then
      redis.call('ZREM', K[state], unpack(ids))
      redis.call('HDEL', K.ended, unpack(ids))
    end
  end
end
