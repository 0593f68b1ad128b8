#!lua
-- add: write up to 1,000 jobs with generated ids and nothing else to say, which is what most dispatches are.
-- ARGV: call id, then for each job: id, payload. Answers: {call id, is the queue new, 1}; or {call id, 0, 0}, and
-- nothing was done, where it takes `dispatch`: for a resend, a cap, an id named twice, a strange layout.
-- A script of its own: the functions that the others need take longer to make than this takes.
--- keys meta jobs ready ended memory0 memory1 memory2 events
--- include clock
--- include order
--- include moment
--- include span

local LONG_WAY = {ARGV[1], 0, 0}
local count = (#ARGV - 1) / 2
if count < 1 or count > 1000 or count % 1 ~= 0 then return LONG_WAY end
local meta = redis.call('HMGET', K.meta, 'v', 'now', 'lease', 'depth', 'seq', 'created', 'events', 'epoch')
if (meta[1] and meta[1] ~= PROTOCOL) or meta[4] then return LONG_WAY end
local last, lease, clock = number(meta[2]) or 0, number(meta[3]), wall()
local now = math.max(clock, last)
local words = {'seq', '', 'created', fmt((number(meta[6]) or 0) + count)}
if not meta[1] then words[5], words[6] = 'v', PROTOCOL end
if clock > last then
  words[#words + 1], words[#words + 2] = 'now', fmt(now)
  -- As in `begin`: a gap is noted by whoever comes first after it.
  if last > 0 and lease and now - last > lease / 2 then
    words[#words + 1], words[#words + 2] = 'gap_end', fmt(now)
  end
end

local ids, records, scores, named, seq = {}, {}, {}, {}, number(meta[5]) or 0
local created = pack_moment(now)
for n = 1, count do
  local id = ARGV[2 * n]
  if id == '' or #id > 200 or named[id] then return LONG_WAY end
  named[id] = true
  seq = seq + 1
  ids[n] = id
  records[2 * n - 1], records[2 * n] = id, cmsgpack.pack(ARGV[2 * n + 1], created)
  scores[2 * n - 1], scores[2 * n] = fmt(ready_score(PRIORITY, seq)), id
end
words[2] = fmt(seq)

-- A generated id is its own request: met in any state, it is a resend.
local function is_known(key)
  local found = redis.call('HMGET', key, unpack(ids))
  for n = 1, count do if found[n] then return true end end
  return false
end
if is_known(K.ended) then return LONG_WAY end
if meta[8] and (is_known(K.memory0) or is_known(K.memory1) or is_known(K.memory2)) then return LONG_WAY end

-- One job is looked up and written in one call; of many, either all are new or none is written.
if count == 1 then
  if redis.call('HSETNX', K.jobs, records[1], records[2]) == 0 then return LONG_WAY end
else
  if is_known(K.jobs) then return LONG_WAY end
  redis.call('HSET', K.jobs, unpack(records))
end
redis.call('ZADD', K.ready, unpack(scores))
redis.call('HSET', K.meta, unpack(words))
if meta[7] ~= '0' then
  local one = count == 1
  redis.call('XADD', K.events, 'MAXLEN', '~', EVENTS_KEPT, '*', 'k', 'dispatched', one and 'i' or 'n',
    one and ids[1] or count)
  -- Once in a while is enough: it lives much longer than a while.
  if not meta[1] or math.floor(now / EVENTS_TICK) ~= math.floor(last / EVENTS_TICK) then
    redis.call('PEXPIRE', K.events, EVENTS_FOR)
  end
end
redis.call('PUBLISH', K.meta .. ':bell', '1')
return {ARGV[1], meta[1] and 0 or 1, 1}
