#!lua flags=no-writes
-- list: one page of the jobs in one state, in the order of their set, from behind a cursor.
-- ARGV: call id, state, limit, cursor score ('' from the start), cursor id.
-- Answers: {call id, now, {{id, score, record or ended as in look} ...}, 1 if there is more}.
--- keys meta jobs next leases ended set
--- include clock
--- include order
--- include moment
--- include record

local MAX_ROWS, MAX_BYTES = 1000, 4194304
local state, limit, from, after = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local ENDED = {succeeded = true, failed = true, cancelled = true}
if from ~= '' and not tonumber(from) then return redis.error_reply('BADARG the cursor has no score') end
if not limit or limit < 1 or limit > MAX_ROWS then return redis.error_reply('BADARG limit is 1 to 1000') end
local now, refusal = glance()
if refusal then return refusal end

-- What has outlived its time is gone, trimmed or not.
local gone = ENDED[state] and redis.call('ZCOUNT', K.set, '-inf', fmt(now)) or 0

-- The first rank behind (score, id). The member itself may be gone since: within equal scores
-- members are ordered by bytes, so a bisection finds where it would stand.
local function rank_behind()
  if from == '' then return gone end
  local lo = redis.call('ZCOUNT', K.set, '-inf', '(' .. from)
  local hi = lo + redis.call('ZCOUNT', K.set, from, from)
  while lo < hi do
    local mid = math.floor((lo + hi) / 2)
    if redis.call('ZRANGE', K.set, mid, mid)[1] <= after then lo = mid + 1 else hi = mid end
  end
  return math.max(lo, gone)
end

local function read(id)
  if ENDED[state] then
    local raw = redis.call('HGET', K.ended, id)
    local ok, code, generation, at, body, created, ext = pcall(cmsgpack.unpack, raw or '')
    if not ok or type(ext) ~= 'table' or type(created) ~= 'number' or type(body) ~= 'string'
        or type(at) ~= 'number' or type(code) ~= 'string' or type(generation) ~= 'number' then return {}, 0 end
    local payload = type(ext.P) == 'string' and ext.P or ''
    ext.P = nil
    return {code, generation, at, body, flat(payload, created, ext)}, #raw
  end
  local raw = redis.call('HGET', state == 'blocked' and K.next or K.jobs, id) or ''
  local payload, created, ext = unpack_record(raw)
  if not payload then return {}, 0 end
  local row = flat(payload, created, ext)
  if state == 'active' then
    local ok, token, _, taken = pcall(cmsgpack.unpack, redis.call('HGET', K.leases, id) or '')
    if ok and type(token) == 'string' and type(taken) == 'number' then
      row[#row + 1], row[#row + 2], row[#row + 3], row[#row + 4] = 'token', token, 'w', taken
    end
  end
  return row, #raw
end

local start = rank_behind()
local found = redis.call('ZRANGE', K.set, start, start + limit, 'WITHSCORES')
local rows, bytes, more = {}, 0, 0
for i = 1, #found, 2 do
  if #rows == limit or bytes > MAX_BYTES then more = 1 break end
  local row, size = read(found[i])
  bytes = bytes + size
  rows[#rows + 1] = {found[i], found[i + 1], row}
end
return {ARGV[1], now, rows, more}
