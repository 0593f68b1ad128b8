#!lua flags=allow-oom
-- exchange: renew what runs, settle what finished, sweep, promote, and lease up to n jobs, in one trip.
-- ARGV: request, is there a fail lane, n, lease ms, by hand (born started), number of settles, then
--   per settle: id, token, outcome (done again fail release cancelled), kind, delay ms, ttl ms (-1 for ever,
--     -2 as the queue is set; what the job's own options say comes first), body,
--     note ('', or JSON of at most 4 KiB that is not opened: what the attempt has cost; kept with the ended record);
--   per renewal: id, token, started, progress ('' for no news; JSON of at most 4 KiB that is not opened).
-- Answers: {request, {OK DUP STALE per settle}, {per renewal 1 kept, 2 kept but cancelled, 3 kept and
--   asked to stop, 0 lost},
--   {leases}, ms until something is due here (-1: nothing), paused}.
-- Safe to resend: settles are known by their token, renewals repeat, leases by the request.
--- keys meta jobs next ready delayed blocked expiring active leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events fail_meta fail_jobs fail_ready fail_expiring fail_events request
local HAS_LANE = ARGV[2] == '1'
--- include clock
--- include meta
--- include order
--- include moment
--- include record
--- include span
--- include news
--- include quarantine
--- include lease
--- include batch
--- include memory
--- include place
--- include requests
--- include ending
--- include finish
--- include again
--- include sweep
--- include room

local MAX_SETTLES, MAX_RENEWALS, MAX_LEASES = 256, 1024, 128
local MAX_PROGRESS, MAX_NOTE = 4096, 32768
local PER_SETTLE, PER_RENEWAL = 8, 4
local SWEPT, PROMOTED, EXPIRED = 100, 500, 100
local OUTCOMES = {done = true, again = true, fail = true, release = true, cancelled = true}

-- What is no whole number of a sane size (nan and inf are numbers to Lua) would fail between two writes.
local MAX_TIME = 2 ^ 45 - 1
local function whole(text, least, most)
  local n = tonumber(text)
  return n and n >= least and n <= most and n % 1 == 0 and n or nil
end

local request, want, length = ARGV[1], whole(ARGV[3], 0, MAX_LEASES), whole(ARGV[4], 1, MAX_TIME)
local born, settles = ARGV[5] == '1' and STARTED or 0, whole(ARGV[6], 0, MAX_SETTLES)
if not want or not length or not settles then
  return redis.error_reply('BADARG exchange takes 0 to 128 leases, a lease length and 0 to 256 settles')
end
local first_renewal = 7 + settles * PER_SETTLE
local renewals = (#ARGV - first_renewal + 1) / PER_RENEWAL
if renewals < 0 or renewals % 1 ~= 0 or renewals > MAX_RENEWALS then
  return redis.error_reply('BADARG exchange takes 8 arguments per settle and 4 per renewal')
end
for i = first_renewal, #ARGV, PER_RENEWAL do
  if #ARGV[i + 3] > MAX_PROGRESS then return redis.error_reply('BADARG a progress has at most 4096 bytes') end
end
for i = 7, first_renewal - 1, PER_SETTLE do
  local kind_wanted = ARGV[i + 2] == 'again'
  if not OUTCOMES[ARGV[i + 2]] or not whole(ARGV[i + 4], -MAX_TIME, MAX_TIME)
      or not whole(ARGV[i + 5], -2, MAX_TIME) or (kind_wanted and not COUNTER[ARGV[i + 3]]) then
    return redis.error_reply('BADARG settle ' .. (i - 7) / PER_SETTLE + 1 .. ' has no known outcome, kind or times')
  end
  if #ARGV[i + 7] > MAX_NOTE then return redis.error_reply('BADARG a note has at most 32768 bytes') end
end

local now, refusal = begin()
if refusal then return refusal end
if want > 0 and meta.lease ~= ARGV[4] then note('lease', ARGV[4]) end

local function lasting(ttl, name, default) if ttl >= -1 then return ttl end return setting(name, default) end

local function settle(id, token, outcome, kind, delay, ttl, body, note)
  local lease = get_lease(id)
  if not lease or lease.token ~= token then
    if recall('@' .. token) == outcome then
      bump('dups')
      return 'DUP'
    end
    bump('stale')
    return 'STALE'
  end
  remember('@' .. token, outcome)
  local raw = redis.call('HGET', K.jobs, id)
  local payload, created, ext = unpack_record(raw or '')
  if not payload then
    if raw then quarantine(id, raw) else bump('anomalies') end
    payload, created, ext = '', lease.taken, {}
  end
  ext.w, ext.v, ext.N = lease.taken, lease.progress, note ~= '' and note or nil
  if has(lease, CANCELLED) or outcome == 'cancelled' then
    end_run(id, 'c', 'cancelled', created, ext, now, ext.y or setting('result_ttl', RESULT_TTL))
  elseif outcome == 'done' then
    end_run(id, 's', body, created, ext, now, ext.y or lasting(ttl, 'result_ttl', RESULT_TTL))
  elseif outcome == 'release' then
    ext.w, ext.v, ext.N = nil, nil, nil
    if delay < 0 then put_back(id, payload, created, ext, run_at(created, ext), now, lease.score)
    else put_back(id, payload, created, ext, now + delay, now) end
  elseif outcome == 'again' and count(ext, kind) then
    shelve(ext)
    ext.w, ext.v, ext.N, ext.e, ext.k = nil, nil, nil, body, kind
    happened('retrying', id, {kind = kind, error = body, attempt = ext.a})
    put_back(id, payload, created, ext, now + delay, now)
  else
    end_failed(id, token, payload, created, ext, kind, body, now, ext.f or lasting(ttl, 'failure_ttl', FAILURE_TTL))
  end
  return 'OK'
end

local function renew(id, token, started, progress)
  local lease = get_lease(id)
  if not lease or lease.token ~= token then return 0 end
  local marks = bit.band(lease.marks, STARTED + CANCELLED + ASKED)
  if started == '1' then marks = bit.bor(marks, STARTED) end
  if progress == '' then progress = lease.progress else happened('progress', id, progress) end
  if marks ~= lease.marks or lease.length ~= length or progress ~= lease.progress then
    lease.marks, lease.length, lease.progress = marks, length, progress
    put_lease(id, lease)
  end
  redis.call('ZADD', K.active, fmt(now + length), id)
  return has(lease, CANCELLED) and 2 or has(lease, ASKED) and 3 or 1
end

local function row(id, token, payload, created, ext)
  if next(ext) == nil then return {id, token, payload, created} end
  return {id, token, payload, created, flat('', created, ext)}
end

-- The same request again: what it was given and still holds, and nothing new. Its tokens were counted
-- up from one number, so that ids are all there is to remember.
local function replay()
  local kept = redis.call('GET', K.request)
  if not kept then return nil end
  local ok, last, first, ids = pcall(cmsgpack.unpack, kept)
  if not ok or last ~= request or type(first) ~= 'number' or type(ids) ~= 'table' then return nil end
  local out = {}
  for i, id in ipairs(ids) do
    local token = fmt(first + i) .. '.' .. request
    local lease = type(id) == 'string' and get_lease(id)
    local raw = lease and lease.token == token and redis.call('HGET', K.jobs, id)
    local payload, created, ext = unpack_record(raw or '')
    if payload then
      out[#out + 1] = row(id, token, payload, created, ext)
    end
  end
  return out
end

local function take(n)
  local popped = redis.call('ZPOPMIN', K.ready, n)
  if #popped == 0 then return {} end
  local ids, out, leased, leases, expiries = {}, {}, {}, {}, {}
  for i = 1, #popped, 2 do ids[#ids + 1] = popped[i] end
  local raws = fetch(K.jobs, ids)
  local expiry, suffix = fmt(now + length), '.' .. request
  local first = number(meta.token) or 0
  for i, id in ipairs(ids) do
    local raw = raws[i]
    local payload, created, ext = unpack_record(raw or '')
    if payload and ext.x and ext.x < now then
      end_waiting(id, raw, 'expired', now)
    elseif payload then
      leased[#leased + 1] = id
      local token = fmt(first + #leased) .. suffix
      leases[#leases + 1] = id
      leases[#leases + 1] = pack_lease(token, length, now, born, tonumber(popped[2 * i]))
      expiries[#expiries + 1] = expiry
      expiries[#expiries + 1] = id
      if ext.x then redis.call('ZREM', K.expiring, id) end
      out[#out + 1] = row(id, token, payload, created, ext)
      happened('started', id, ext.a and '{"attempt":' .. ext.a + 1 .. '}' or nil)
    elseif raw then
      redis.call('HDEL', K.jobs, id)
      quarantine(id, raw)
    else
      bump('anomalies')
      tell(id)
    end
  end
  if #leased > 0 then
    many('HSET', K.leases, leases)
    many('ZADD', K.active, expiries)
    note('token', first + #leased)
    redis.call('SET', K.request, cmsgpack.pack(request, first, leased), 'PX', fmt(math.max(length, 60000)))
  end
  return out
end

local function next_due()
  local soonest = -1
  local function consider(at) if at and (soonest < 0 or at < soonest) then soonest = at end end
  consider(tonumber(redis.call('ZRANGE', K.active, 0, 0, 'WITHSCORES')[2]))
  local delayed = tonumber(redis.call('ZRANGE', K.delayed, 0, 0, 'WITHSCORES')[2])
  if delayed then consider(math.floor(delayed / 256)) end
  consider(tonumber(redis.call('ZRANGE', K.expiring, 0, 0, 'WITHSCORES')[2]))
  if soonest < 0 then return -1 end
  return math.max(soonest - now, 0)
end

-- Most settles are of a run that succeeded and has nobody waiting behind it: those are read and
-- written together. A job or a token named twice, one cancelled, blocked by or unreadable takes the long way: there
-- the first comes first.
local function settle_together()
  local ids, at, answers, named, offered = {}, {}, {}, {}, {}
  for i = 7, first_renewal - 1, PER_SETTLE do
    local id, token = ARGV[i], ARGV[i + 1]
    named[id], offered[token] = (named[id] or 0) + 1, (offered[token] or 0) + 1
  end
  for i = 7, first_renewal - 1, PER_SETTLE do
    if ARGV[i + 2] == 'done' and named[ARGV[i]] == 1 and offered[ARGV[i + 1]] == 1 then
      ids[#ids + 1] = ARGV[i]
      at[ARGV[i]] = i
    end
  end
  local leases, raws, blocked = fetch(K.leases, ids), fetch(K.jobs, ids), fetch(K.next, ids)
  local ended, written, expiries = {}, {}, {}
  local default
  for n, id in ipairs(ids) do
    local i = at[id]
    local lease = leases[n] and read_lease(leases[n])
    local payload, created, ext = unpack_record(raws[n] or '')
    if lease and payload and lease.token == ARGV[i + 1] and not blocked[n] and not has(lease, CANCELLED) then
      local ttl = ext.y or tonumber(ARGV[i + 5])
      if ttl < -1 then
        default = default or setting('result_ttl', RESULT_TTL)
        ttl = default
      end
      remember('@' .. lease.token, 'done')
      remember_short(id, ttl, ext)
      if ttl ~= 0 then
        shelve(ext)
        ext.w, ext.v, ext.N = lease.taken, lease.progress, ARGV[i + 7] ~= '' and ARGV[i + 7] or nil
        written[#written + 1] = id
        written[#written + 1] = cmsgpack.pack('s', ext.g or 0, now, ARGV[i + 6], created, ext)
        expiries[#expiries + 1] = fmt(expiry(now, ttl))
        expiries[#expiries + 1] = id
      end
      ended[#ended + 1] = id
      tell(id)
      happened('succeeded', id)
      answers[i] = 'OK'
    end
  end
  if #ended == 0 then return answers end
  bump('succeeded', #ended)
  many('HDEL', K.leases, ended)
  many('ZREM', K.active, ended)
  many('HDEL', K.jobs, ended)
  if redis.call('HLEN', K.ended) > 0 and redis.call('HDEL', K.ended, unpack(ended)) > 0 then
    many('ZREM', K.succeeded, ended)
    many('ZREM', K.failed, ended)
    many('ZREM', K.cancelled, ended)
  end
  many('HSET', K.ended, written)
  many('ZADD', K.succeeded, expiries)
  return answers
end

local was_full = room() == 0

-- By hand a lapse is final at once, whether or not anybody has swept since: whoever comes late must not
-- learn by chance. A worker's late result is let through while nobody else has begun the job.
local function lapse(id)
  local at = tonumber(redis.call('ZSCORE', K.active, id) or nil)
  if at and at <= now then sweep_one(id, now) end
end
if born == STARTED then
  for i = 7, first_renewal - 1, PER_SETTLE do lapse(ARGV[i]) end
  for i = first_renewal, #ARGV, PER_RENEWAL do lapse(ARGV[i]) end
end

-- Renewals first: the last progress of an attempt comes with its end, and is kept with it.
local settled, renewed = {}, {}
for i = first_renewal, #ARGV, PER_RENEWAL do
  renewed[#renewed + 1] = renew(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
local together = settle_together()
for i = 7, first_renewal - 1, PER_SETTLE do
  settled[#settled + 1] = together[i] or settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3],
    tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 6], ARGV[i + 7])
end
local leases = replay()
if not leases then
  sweep(now, SWEPT)
  expire(now, EXPIRED)
  promote(now, PROMOTED)
  trim(now, 2 * settles + 100)
  leases = {}
  if want > 0 and meta.paused ~= '1' then leases = take(math.min(want, room())) end
end
ring_if_freed(was_full)
keep_memory(now)
commit()
publish(string.match(K.request, ':request:(.*)$'))
return {request, settled, renewed, leases, next_due(), meta.paused == '1' and 1 or 0}
