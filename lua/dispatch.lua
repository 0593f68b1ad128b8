#!lua
-- dispatch: write up to 1,000 jobs, each new, or merged with what its id already has waiting.
-- ARGV: call id, then for each job: id, payload, spec ('' for a plain job with a generated id, else JSON).
-- Answers: {call id, is the queue new, {one answer per job}}, an answer being its letter and generation:
--   N new · B new, blocked by a running one · U updated · M merged into a blocked one · J joined · D resent
--- keys meta jobs next ready delayed blocked expiring leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events
--- include clock
--- include meta
--- include order
--- include moment
--- include record
--- include span
--- include news
--- include quarantine
--- include batch
--- include memory
--- include place
--- include requests
--- include ending

local MAX_ITEMS, MAX_TIME = 1000, 2 ^ 45 - 1
local RUN_AT = {set = true, later = true, earlier = true, keep = true}

-- Everything is checked before the first write: what is refused leaves nothing behind.
local function whole(v, most) return v == nil or (type(v) == 'number' and v >= -1 and v <= most and v % 1 == 0) end

local function read_spec(text)
  local ok, spec = pcall(cjson.decode, text)
  if not ok or type(spec) ~= 'table' then return nil, 'spec is not a JSON object' end
  if not (whole(spec.at, MAX_TIME) and whole(spec.delay, MAX_TIME) and whole(spec.x, MAX_TIME)
      and whole(spec.lasts, MAX_TIME)) then return nil, 'a time is out of range' end
  if not (whole(spec.m, 1e9) and whole(spec.y, MAX_TIME) and whole(spec.f, MAX_TIME)) then
    return nil, 'a limit is out of range'
  end
  if spec.p ~= nil and (type(spec.p) ~= 'number' or spec.p < 0 or spec.p > 255 or spec.p % 1 ~= 0) then
    return nil, 'priority is out of range'
  end
  if not RUN_AT[spec.ur or 'keep'] then return nil, 'unknown update of the run time' end
  if spec.o ~= nil and type(spec.o) ~= 'string' then return nil, 'options are not text' end
  if spec.q ~= nil and (type(spec.q) ~= 'string' or string.find(spec.q, ',', 1, true)) then
    return nil, 'request is not a nonce'
  end
  return spec
end

if #ARGV < 4 or (#ARGV - 1) % 3 ~= 0 or (#ARGV - 1) / 3 > MAX_ITEMS then
  return redis.error_reply('BADARG a dispatch takes 1 to 1000 jobs of three arguments')
end
local specs = {}
for i = 2, #ARGV, 3 do
  if ARGV[i] == '' or #ARGV[i] > 200 then return redis.error_reply('BADARG an id has 1 to 200 bytes') end
  if ARGV[i + 2] ~= '' then
    local spec, problem = read_spec(ARGV[i + 2])
    if not spec then return redis.error_reply('BADARG job ' .. (i + 1) / 3 .. ': ' .. problem) end
    specs[i] = spec
  end
end

local now, refusal = begin()
if refusal then return refusal end
local fresh_queue = not meta.v
local should_ring, created_count = false, 0

local function ended_or_dropped(id)
  return redis.call('HEXISTS', K.ended, id) == 1 or recall(id)
end

local function ended_requests(id)
  local raw = redis.call('HGET', K.ended, id)
  if raw then
    local ok, _, generation, _, _, _, ext = pcall(cmsgpack.unpack, raw)
    if ok and type(ext) == 'table' and type(ext.q) == 'string' then
      return ext.q, sane(generation) and generation or 0
    end
  end
  return recall(id), 0
end

-- Whether this one would wait beside the others: a resend, an update and a join do not, and must not
-- be refused by a queue that they filled themselves.
local function adds(id, spec)
  local raw = redis.call('HGET', K.jobs, id)
  if not spec or not spec.q then return not raw and not ended_or_dropped(id) end
  local _, _, ext = unpack_record(raw or '')
  if not ext then return not knows(ended_requests(id) or nil, spec.q) end
  return not knows(ext.q, spec.q) and not spec.join and redis.call('HEXISTS', K.leases, id) == 1
    and redis.call('HEXISTS', K.next, id) == 0
end

local depth = number(meta.depth)
if depth then
  local waiting = redis.call('ZCARD', K.ready) + redis.call('ZCARD', K.delayed) + redis.call('ZCARD', K.blocked)
  if waiting + (#ARGV - 1) / 3 > depth then
    local added = 0
    for i = 2, #ARGV, 3 do if adds(ARGV[i], specs[i]) then added = added + 1 end end
    if added > 0 and waiting + added > depth then
      return redis.error_reply('FULL ' .. waiting .. ' jobs wait, its cap is ' .. fmt(depth))
    end
  end
end

local function new_ext(spec, seq)
  return {g = seq, q = spec.q and add_request(nil, spec.q), p = spec.p ~= PRIORITY and spec.p or nil,
    x = spec.x or (spec.lasts and now + spec.lasts), o = spec.o, m = spec.m, y = spec.y, f = spec.f}
end

local function wanted_time(spec)
  if spec.at then return spec.at end
  if spec.delay then return now + spec.delay end
  return now
end

-- The options of the newest dispatch that has a say in them.
local function take_options(ext, spec)
  local new = new_ext(spec)
  ext.o, ext.p, ext.x, ext.m, ext.y, ext.f = new.o, new.p, new.x, new.m, new.y, new.f
end

local function moved(current, spec, at)
  if spec.ur == 'set' then return at end
  if spec.ur == 'later' then return math.max(current, at) end
  if spec.ur == 'earlier' then return math.min(current, at) end
  return current
end

local function update_waiting(id, payload, spec, old, created, ext)
  local before_time, before_priority = run_at(created, ext), priority(ext)
  if spec.ud then old = payload end
  if spec.uo then take_options(ext, spec) end
  if spec.rs then reset_counts(ext) end
  local at = moved(before_time, spec, wanted_time(spec))
  ext.u = at ~= created and at or nil
  ext.q = add_request(ext.q, spec.q)
  redis.call('HSET', K.jobs, id, pack_record(old, created, ext))
  local score = number(redis.call('ZSCORE', K.ready, id))
  if score and priority(ext) ~= before_priority then
    score = ready_score(priority(ext), score % CLASS)
  end
  displace(id)
  if place(id, created, ext, now, score) then should_ring = true end
  return 'U' .. fmt(ext.g or 0)
end

-- One pair (lo, hi) stands for any number of run-time updates, since clamps compose to a clamp.
local function compose(ext, spec, at)
  local lo, hi
  if spec.ur == 'set' then lo, hi = at, at elseif spec.ur == 'later' then lo = at elseif spec.ur == 'earlier' then hi = at end
  local function through(v)
    if lo and v < lo then v = lo end
    if hi and v > hi then v = hi end
    return v
  end
  if ext.l then ext.l = through(ext.l) else ext.l = lo end
  if ext.h then ext.h = through(ext.h) else ext.h = hi end
end

local function block(id, payload, spec)
  local at = wanted_time(spec)
  local raw = redis.call('HGET', K.next, id)
  local old, created, ext = unpack_record(raw or '')
  if raw and not old then quarantine(id, raw) end
  local answer = 'M'
  if old then
    if knows(ext.q, spec.q) then return 'D' .. fmt(ext.g or 0) end
    if spec.join then return 'J' .. fmt(ext.g or 0) end
    if spec.ud then old = payload end
    if spec.uo then take_options(ext, spec) end
    if spec.rs then reset_counts(ext) end
    local moved_to = moved(run_at(created, ext), spec, at)
    ext.u = moved_to ~= created and moved_to or nil
    ext.q = add_request(ext.q, spec.q)
  else
    answer = 'B'
    local seq = bump('seq')
    old, created, ext = payload, now, new_ext(spec, seq)
    ext.u = at ~= now and at or nil
    redis.call('ZADD', K.blocked, fmt(seq), id)
    created_count = created_count + 1
    happened('dispatched', id)
  end
  if spec.ud then ext.D = 1 end
  if spec.rs then ext.R = 1 end
  if spec.uo then ext.O = 1 end
  compose(ext, spec, at)
  redis.call('ZREM', K.expiring, id)
  if ext.x then redis.call('ZADD', K.expiring, fmt(ext.x), id) end
  redis.call('HSET', K.next, id, pack_record(old, created, ext))
  return answer .. fmt(ext.g or 0)
end

-- requests: those of the run before it, whose resends are to be known still.
local function fresh(id, payload, spec, requests)
  local ext = new_ext(spec, bump('seq'))
  ext.q = spec.q and add_request(requests, spec.q)
  local at = wanted_time(spec)
  ext.u = at ~= now and at or nil
  redis.call('HSET', K.jobs, id, pack_record(payload, now, ext))
  created_count = created_count + 1
  happened('dispatched', id)
  if place(id, now, ext, now, at <= now and ready_score(priority(ext), ext.g) or nil) then should_ring = true end
  return 'N' .. fmt(ext.g)
end

local function dispatch_named(id, payload, spec)
  local running = redis.call('HEXISTS', K.leases, id) == 1
  local raw = redis.call('HGET', K.jobs, id)
  local old, created, ext = unpack_record(raw or '')
  if raw and not old then
    quarantine(id, raw)
    if not running then displace(id) end
    redis.call('HDEL', K.jobs, id)
  end
  if old and knows(ext.q, spec.q) then return 'D' .. fmt(ext.g or 0) end
  if running then
    if spec.join and redis.call('HEXISTS', K.next, id) == 0 then return 'J' .. fmt(ext and ext.g or 0) end
    return block(id, payload, spec)
  end
  if old then
    if spec.join then return 'J' .. fmt(ext.g or 0) end
    return update_waiting(id, payload, spec, old, created, ext)
  end
  local requests, generation = ended_requests(id)
  if knows(requests or nil, spec.q) then return 'D' .. fmt(generation) end
  forget_ended(id)
  return fresh(id, payload, spec, requests or nil)
end

-- A generated id is its own request: met again in any state, it is a resend. Plain jobs are looked up
-- and written together, as far as they stand together: arrival is in the order of the arguments.
-- Answers where the next job stands.
local function dispatch_plain(answers, i)
  local ids, at = {}, {}
  while i < #ARGV and not specs[i] do
    if at[ARGV[i]] then
      answers[(i + 1) / 3] = 'D0'
    else
      ids[#ids + 1] = ARGV[i]
      at[ARGV[i]] = i
    end
    i = i + 3
  end
  local found = {}
  for _, key in ipairs({K.jobs, K.ended, K.memory0, K.memory1, K.memory2}) do
    local values = fetch(key, ids)
    for n = 1, #ids do found[n] = found[n] or values[n] end
  end
  local records, scores, created = {}, {}, pack_moment(now)
  for n, id in ipairs(ids) do
    if found[n] then
      answers[(at[id] + 1) / 3] = 'D0'
    else
      records[#records + 1] = id
      records[#records + 1] = cmsgpack.pack(ARGV[at[id] + 1], created)
      scores[#scores + 1] = fmt(ready_score(PRIORITY, bump('seq')))
      scores[#scores + 1] = id
      answers[(at[id] + 1) / 3] = 'N0'
      happened('dispatched', id)
    end
  end
  if #records > 0 then
    many('HSET', K.jobs, records)
    many('ZADD', K.ready, scores)
    created_count = created_count + #records / 2
    should_ring = true
  end
  return i
end

local function dispatch_one(id, payload, spec)
  if spec.q then return dispatch_named(id, payload, spec) end
  if ended_or_dropped(id) or redis.call('HEXISTS', K.jobs, id) == 1 then return 'D0' end
  return fresh(id, payload, spec)
end

local answers, i = {}, 2
while i < #ARGV do
  if not specs[i] then
    i = dispatch_plain(answers, i)
  else
    answers[(i + 1) / 3] = dispatch_one(ARGV[i], ARGV[i + 1], specs[i])
    i = i + 3
  end
end
if created_count > 0 then bump('created', created_count) end
keep_memory(now)
commit()
publish()
if should_ring then ring() end
return {ARGV[1], fresh_queue and 1 or 0, answers}
