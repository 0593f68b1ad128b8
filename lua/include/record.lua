-- A waiting or running job: one packed string. payload, created, then a table only if there is
-- anything else to say, so that a plain job costs eight bytes beside its payload.
--   g generation · q recent dispatch requests · a attempts put back · r t s c d retries, timeouts,
--   stalls, crashes, lost deliveries · T C M how many of the timeouts were of wall time, CPU, memory · u run time · p priority · x expiry · o options (opaque)
--   m y f max_stalls, result_ttl, failure_ttl set for this job · e k last error and its kind
--   A errors of the attempts before that one, as kind, error, kind, error ...: four of them, never sent with a lease
--   in a failure job: i the job it speaks of · j the token that failed · z the kind · b the error ·
--   n its attempts, retries, timeouts, stalls, crashes
--   in an ended one also: w when the last attempt was leased · v its last progress · N what
--   its settle noted of it (opaque) · P payload, F failure job of a
--   failed one
--   while blocked also: D has data · R resets counts · O has options · l h clamp of the run time
local NUMBERS = {'g', 'a', 'r', 't', 's', 'c', 'd', 'u', 'p', 'x', 'm', 'y', 'f', 'l', 'h', 'T', 'C', 'M'}
local KEPT_ATTEMPTS = 5
local TEXTS = {'q', 'o', 'e', 'k', 'i', 'j', 'z', 'b', 'n'}

local function pack_record(payload, created, ext)
  if next(ext) == nil then return cmsgpack.pack(payload, pack_moment(created)) end
  return cmsgpack.pack(payload, pack_moment(created), ext)
end

local function readable(ext)
  if type(ext) ~= 'table' then return false end
  for _, f in ipairs(NUMBERS) do
    local v = ext[f]
    if v ~= nil and not sane(v) then return false end
  end
  for _, f in ipairs(TEXTS) do
    if ext[f] ~= nil and type(ext[f]) ~= 'string' then return false end
  end
  if ext.A ~= nil then
    if type(ext.A) ~= 'table' then return false end
    for _, word in pairs(ext.A) do if type(word) ~= 'string' then return false end end
  end
  return true
end

-- Total: whatever bytes are in the hash, the answer is a whole record or nothing.
local function unpack_record(raw)
  local ok, payload, moment, ext = pcall(cmsgpack.unpack, raw)
  local created = ok and read_moment(moment)
  if not created or type(payload) ~= 'string' then return nil end
  if ext == nil then return payload, created, {} end
  if not readable(ext) then return nil end
  return payload, created, ext
end

-- The last error joins the earlier ones, to make room for what came of the next attempt.
local function shelve(ext)
  if not ext.e then return end
  local all = ext.A or {}
  all[#all + 1], all[#all + 2] = ext.k or '', ext.e
  while #all > 2 * (KEPT_ATTEMPTS - 1) do
    table.remove(all, 1)
    table.remove(all, 1)
  end
  ext.A, ext.e, ext.k = all, nil, nil
end

-- The counters begin anew; the total of attempts does not.
local function reset_counts(ext)
  ext.r, ext.t, ext.s, ext.c, ext.d = nil, nil, nil, nil, nil
  ext.T, ext.C, ext.M = nil, nil, nil
end

local function priority(ext) return ext.p or PRIORITY end
local function run_at(created, ext) return ext.u or created end

local function flat(payload, created, ext)
  local out = {'payload', payload, 'created', created}
  for k, v in pairs(ext) do
    if type(k) == 'string' and (type(v) == 'string' or type(v) == 'number') then
      out[#out + 1] = k
      out[#out + 1] = v
    end
  end
  return out
end
