#!lua flags=no-writes
-- look: everything known of one id: its waiting run, its running one, its last ended one.
-- ARGV: call id, id, '1' to be told of past attempts too. Answers: {call id, now, place of the waiting run or '', its record, lease or {} (token,
-- length, taken, marks, end, progress), the running
-- record, ended or {}}, records as flat lists of names and values. Then, if asked for: the past attempts of the record in `jobs`, and
-- of the ended one, each as kind, error, kind, error ..., oldest first.
--- keys meta jobs next ready delayed blocked leases active ended succeeded failed cancelled
--- include clock
--- include order
--- include moment
--- include record

local id = ARGV[2]
local now, refusal = glance()
if refusal then return refusal end

local function past(ext)
  local words = {}
  for _, word in ipairs(type(ext.A) == 'table' and ext.A or {}) do
    words[#words + 1] = type(word) == 'string' and word or ''
  end
  if type(ext.e) == 'string' then
    words[#words + 1], words[#words + 2] = type(ext.k) == 'string' and ext.k or '', ext.e
  end
  return words
end

local function read(raw)
  if not raw then return {} end
  local payload, created, ext = unpack_record(raw)
  if not payload then return {'corrupt', 1} end
  return flat(payload, created, ext), past(ext)
end

local held = redis.call('HGET', K.leases, id)
local lease, running, place, waiting, tried = {}, {}, '', {}, nil
if held then
  local ok, token, length, taken, marks, _, progress = pcall(cmsgpack.unpack, held)
  if ok and type(token) == 'string' and sane(length) and sane(taken) and sane(marks) then
    lease = {token, length, taken, marks, redis.call('ZSCORE', K.active, id) or '0',
      type(progress) == 'string' and progress or ''}
  else
    lease = {'', 0, 0, 0, '0', ''}
  end
  running, tried = read(redis.call('HGET', K.jobs, id))
  waiting = read(redis.call('HGET', K.next, id))
  if #waiting > 0 then place = 'blocked' end
else
  waiting, tried = read(redis.call('HGET', K.jobs, id))
  if redis.call('ZSCORE', K.ready, id) then place = 'ready'
  elseif redis.call('ZSCORE', K.delayed, id) then place = 'delayed'
  elseif #waiting > 0 then place = 'ready' end
end

-- What has outlived its time is gone, trimmed or not.
local ended, over = {}, {}
local raw = redis.call('HGET', K.ended, id)
local expiry = raw and tonumber(redis.call('ZSCORE', K.succeeded, id) or redis.call('ZSCORE', K.failed, id)
  or redis.call('ZSCORE', K.cancelled, id) or nil)
if raw and (not expiry or expiry > now) then
  local ok, state, generation, at, body, created, ext = pcall(cmsgpack.unpack, raw)
  if ok and type(ext) == 'table' and type(created) == 'number' and type(body) == 'string'
      and type(state) == 'string' and type(at) == 'number' and type(generation) == 'number' then
    local payload = type(ext.P) == 'string' and ext.P or ''
    ext.P, over = nil, past(ext)
    ended = {state, generation, at, body, flat(payload, created, ext)}
  else
    ended = {'corrupt', 0, 0, '', {}}
  end
end
if ARGV[3] == '1' then return {ARGV[1], now, place, waiting, lease, running, ended, tried or {}, over} end
return {ARGV[1], now, place, waiting, lease, running, ended}
