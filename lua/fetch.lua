#!lua flags=no-writes
-- fetch: the ends of up to 1,000 runs in one trip, for who waits for many.
-- ARGV: call id, then for each: id, generation ('' for the newest run).
-- Answers: {call id, {one answer per run}}, an answer being 0 it waits or runs · -1 nothing is known of it ·
--   -2 it has ended, but this reply is full: ask again · {state, generation, ended at, body, kind of a failure or ''}.
-- A run ends with the first end of its generation or of a later one, as for `look`.
--- keys meta jobs next ready delayed leases ended succeeded failed cancelled
--- include clock
--- include order
--- include moment
--- include record

local MAX_ITEMS, MAX_BYTES = 1000, 8388608
local PENDING, UNKNOWN, LATER = 0, -1, -2
local SET = {s = K.succeeded, f = K.failed, c = K.cancelled}
if #ARGV < 3 or (#ARGV - 1) % 2 ~= 0 or (#ARGV - 1) / 2 > MAX_ITEMS then
  return redis.error_reply('BADARG a fetch takes 1 to 1000 runs of two arguments')
end
local ids, wanted = {}, {}
for i = 2, #ARGV, 2 do
  local generation = tonumber(ARGV[i + 1])
  if ARGV[i + 1] ~= '' and not generation then return redis.error_reply('BADARG a generation is a number') end
  ids[#ids + 1] = ARGV[i]
  wanted[#ids] = generation or false
end
local now, refusal = glance()
if refusal then return refusal end
local kept = redis.call('HMGET', K.ended, unpack(ids))

-- What has outlived its time is gone, trimmed or not. One that nobody can read is known to have ended, no more.
local function read_ended(id, raw)
  if not raw then return nil end
  local ok, state, generation, at, body, created, ext = pcall(cmsgpack.unpack, raw)
  local whole = ok and SET[state] and type(generation) == 'number' and type(at) == 'number'
    and type(body) == 'string' and type(created) == 'number' and type(ext) == 'table'
  if not whole then return {generation = 0} end
  local expiry = tonumber(redis.call('ZSCORE', SET[state], id) or nil)
  if expiry and expiry <= now then return nil end
  return {generation = generation, state = state, at = at, body = body, kind = type(ext.k) == 'string' and ext.k or ''}
end

local function waits(id, is_held)
  if is_held then return redis.call('HEXISTS', K.next, id) == 1 end
  return redis.call('HEXISTS', K.jobs, id) == 1 or redis.call('ZSCORE', K.ready, id)
    or redis.call('ZSCORE', K.delayed, id)
end

local function running_generation(id)
  local _, _, ext = unpack_record(redis.call('HGET', K.jobs, id) or '')
  return ext and ext.g or 0
end

local function pending(id, generation, is_held)
  if is_held and (not generation or running_generation(id) >= generation) then return true end
  return waits(id, is_held)
end

-- Who has ended is looked for nowhere else: of many that are read, most have.
local ends, open, held = {}, {}, {}
for n, id in ipairs(ids) do
  ends[n] = read_ended(id, kept[n])
  if not (ends[n] and wanted[n] and ends[n].generation >= wanted[n]) then open[#open + 1] = n end
end
if #open > 0 then
  local names = {}
  for i, n in ipairs(open) do names[i] = ids[n] end
  local leases = redis.call('HMGET', K.leases, unpack(names))
  for i, n in ipairs(open) do held[n] = leases[i] end
end

local bytes = 0
local function answer(n, id)
  local ended, generation, is_held = ends[n], wanted[n], held[n]
  local is_over = is_held == nil  -- who was asked about has false here, or a lease
  if not is_over and pending(id, generation, is_held) then return PENDING end
  if not ended or not ended.state or (generation and not is_over) then return UNKNOWN end
  if bytes > 0 and bytes + #kept[n] > MAX_BYTES then return LATER end
  bytes = bytes + #kept[n]
  return {ended.state, ended.generation, ended.at, ended.body, ended.kind}
end

local answers = {}
for n, id in ipairs(ids) do answers[n] = answer(n, id) end
return {ARGV[1], answers}
