-- How a running attempt ends its run: the lease goes, the ended record and the failure job are written,
-- and a blocked dispatch of the same id becomes a run of its own, always. It takes over the requests
-- of the run before it: a resend of that one's dispatch must not pass for an update of this one.
local FAILURE_TTL, FAILURE_JOB_MIN = 604800000, 60000

local function unblock(id, now, requests)
  local raw = redis.call('HGET', K.next, id)
  if not raw then return end
  redis.call('HDEL', K.next, id)
  redis.call('ZREM', K.blocked, id)
  redis.call('ZREM', K.expiring, id)
  local payload, created, ext = unpack_record(raw)
  if not payload then return quarantine(id, raw) end
  ext.D, ext.R, ext.O, ext.l, ext.h = nil, nil, nil, nil, nil
  ext.q = join_requests(requests, ext.q)
  redis.call('HSET', K.jobs, id, pack_record(payload, created, ext))
  if place(id, created, ext, now) then ring() end
end

local function drop_active(id)
  redis.call('HDEL', K.leases, id)
  redis.call('ZREM', K.active, id)
  redis.call('HDEL', K.jobs, id)
end

-- A lane that nobody serves has nobody to tidy it: whoever adds one to it drops up to two that lapsed.
-- Only failure jobs: one dispatched into the lane by hand may be resent, and the lane's own memory is not
-- at hand here to know it by.
local function tidy_lane(now)
  local lapsed = redis.call('ZRANGEBYSCORE', K.fail_expiring, '-inf', '(' .. fmt(now), 'LIMIT', 0, 2)
  for _, fid in ipairs(lapsed) do
    local _, _, fext = unpack_record(redis.call('HGET', K.fail_jobs, fid) or '')
    if (not fext or fext.i) and redis.call('ZREM', K.fail_ready, fid) == 1 then
      redis.call('ZREM', K.fail_expiring, fid)
      redis.call('HDEL', K.fail_jobs, fid)
      redis.call('HINCRBY', K.fail_meta, 'cancelled', 1)
      tell(fid, K.fail_meta)
      happened('cancelled', fid, nil, K.fail_meta)
    end
  end
end

-- Written whether or not anybody handles failures; its id follows from job and token, so that a
-- replay cannot make a second one. Unleased, it goes when the failure record goes.
local function write_failure_job(id, token, payload, ext, kind, body, now, ttl)
  local fid = string.sub(redis.sha1hex(id .. ':' .. token), 1, 22)
  local fext = {i = id, j = token, b = body, z = kind, n = string.format('%d %d %d %d %d',
    ext.a or 0, ext.r or 0, ext.t or 0, ext.s or 0, ext.c or 0)}
  if ttl >= 0 then fext.x = now + math.max(ttl, FAILURE_JOB_MIN) end
  if redis.call('HSETNX', K.fail_jobs, fid, pack_record(payload, now, fext)) == 1 then
    redis.call('HSETNX', K.fail_meta, 'v', PROTOCOL)
    redis.call('HINCRBY', K.fail_meta, 'created', 1)
    redis.call('ZADD', K.fail_ready,
      fmt(ready_score(PRIORITY, redis.call('HINCRBY', K.fail_meta, 'seq', 1))), fid)
    if fext.x then redis.call('ZADD', K.fail_expiring, fmt(fext.x), fid) end
    tidy_lane(now)
    happened('dispatched', fid, nil, K.fail_meta)
    redis.call('PUBLISH', K.fail_meta .. ':bell', '1')
  end
  return fid
end

local function end_failed(id, token, payload, created, ext, kind, body, now, ttl)
  if HAS_LANE then ext.F = write_failure_job(id, token, payload, ext, kind, body, now, ttl) end
  happened('failed', id, {kind = kind, error = body, attempt = (ext.a or 0) + 1})
  shelve(ext)
  ext.P, ext.k, ext.e = payload, kind, nil
  drop_active(id)
  write_ended(id, 'f', now, ttl, body, created, ext)
  bump('failed')
  unblock(id, now, ext.q)
end

local function end_run(id, state, body, created, ext, now, ttl)
  happened(ENDED[state], id)
  shelve(ext)
  drop_active(id)
  write_ended(id, state, now, ttl, body, created, ext)
  bump(ENDED[state])
  unblock(id, now, ext.q)
end
