-- Lapsed leases: put back with a stall counted and a backoff, or given up. Total: a lease, a record
-- or both may be missing or unreadable, and the rest is swept all the same.
local MAX_STALLS, MIN_BACKOFF, MAX_BACKOFF = 3, 2000, 300000

local function stall_error(why)
  return '{"type":"Stalled","message":"' .. why .. '"}'
end

local function sweep_one(id, now)
  local lease = get_lease(id)
  local raw = redis.call('HGET', K.jobs, id)
  local payload, created, ext = unpack_record(raw or '')
  if not payload then
    -- Nothing left to run again; a blocked dispatch of the same id must not wait for it.
    if raw then quarantine(id, raw) else bump('anomalies') end
    tell(id)
    drop_active(id)
    unblock(id, now)
    return
  end
  if not lease then
    bump('anomalies')
    return put_back(id, payload, created, ext, now, now)
  end
  -- A renewal lost to an outage is not a dead worker: once per lease, until it is renewed.
  local lapsed = tonumber(redis.call('ZSCORE', K.active, id))
  if not has(lease, EXTENDED) and lapsed < (number(meta.gap_end) or 0) + lease.length then
    set_mark(id, lease, EXTENDED)
    redis.call('ZADD', K.active, fmt(now + lease.length), id)
    return
  end
  bump('swept')
  if has(lease, CANCELLED) then
    ext.w, ext.v = has(lease, STARTED) and lease.taken or nil, lease.progress
    return end_run(id, 'c', 'cancelled', created, ext, now, ext.y or setting('result_ttl', RESULT_TTL))
  end
  remember('@' .. lease.token, 'swept')
  if not has(lease, STARTED) then
    if (ext.d or 0) < MAX_LOST then
      count(ext, 'lost')
      return put_back(id, payload, created, ext, run_at(created, ext), now, lease.score)
    end
    ext.v = lease.progress
    return end_failed(id, lease.token, payload, created, ext, 'stall',
      stall_error('its delivery was lost ' .. MAX_LOST .. ' times'), now, ext.f or setting('failure_ttl', FAILURE_TTL))
  end
  local stalls = ext.s or 0
  if stalls < (ext.m or setting('max_stalls', MAX_STALLS)) and count(ext, 'stall') then
    local least, most = setting('min_backoff', MIN_BACKOFF), setting('max_backoff', MAX_BACKOFF)
    local error = stall_error('the worker that ran it was lost')
    shelve(ext)
    ext.e, ext.k = error, 'stall'
    happened('stalled', id, {kind = 'stall', error = error, attempt = ext.a})
    return put_back(id, payload, created, ext, now + math.min(most, least * 2 ^ math.min(stalls, 30)), now)
  end
  ext.w, ext.v = lease.taken, lease.progress
  end_failed(id, lease.token, payload, created, ext, 'stall',
    stall_error('the worker that ran it was lost ' .. (stalls + 1) .. ' times'), now,
    ext.f or setting('failure_ttl', FAILURE_TTL))
end

local function sweep(now, limit)
  local ids = redis.call('ZRANGEBYSCORE', K.active, '-inf', fmt(now), 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do sweep_one(id, now) end
  return ids
end

-- Jobs whose last start time has passed end as cancelled, wherever in the queue they stand.
local function expire(now, limit)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.expiring, '-inf', '(' .. fmt(now), 'LIMIT', 0, limit)) do
    redis.call('ZREM', K.expiring, id)
    local raw = redis.call('HGET', K.next, id)
      or (redis.call('HEXISTS', K.leases, id) == 0 and redis.call('HGET', K.jobs, id))
    if raw then end_waiting(id, raw, 'expired', now) end
  end
end

local function promote(now, limit)
  local due = redis.call('ZRANGEBYSCORE', K.delayed, '-inf', fmt(now * 256 + 255), 'WITHSCORES', 'LIMIT', 0, limit)
  if #due == 0 then return end
  local seq = bump('seq', #due / 2) - #due / 2
  for i = 1, #due, 2 do
    seq = seq + 1
    redis.call('ZREM', K.delayed, due[i])
    local score = number(due[i + 1])
    redis.call('ZADD', K.ready, fmt(ready_score(score and 255 - score % 256 or PRIORITY, seq)), due[i])
  end
end
