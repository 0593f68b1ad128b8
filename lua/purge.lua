#!lua flags=allow-oom
-- purge: drop a bounded batch of the jobs in one state that are older than a given age.
-- ARGV: call id, state, older than ms, from what moment on (0: the server's now), limit, rank to begin at.
-- Answers: {call id, dropped, 1 if there may be more, the moment, rank to go on at}. The moment keeps a purge
-- that takes several calls from chasing jobs that arrive meanwhile.
--- keys meta jobs next ready delayed blocked expiring leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events set
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
--- include answered
--- include place
--- include requests
--- include ending

local state, age, moment, limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local WAITING = {ready = true, delayed = true, blocked = true}
local DONE = {succeeded = true, failed = true, cancelled = true}
if not (WAITING[state] or DONE[state]) or not age or not moment or not limit or limit < 1 or limit > 1000 then
  return redis.error_reply('BADARG purge takes a state that is not active, an age and a limit of 1 to 1000')
end
local now, refusal = begin()
if refusal then return refusal end
local known = answered(4)
if known then
  commit()
  return known
end
if moment == 0 then moment = now end

local function old_enough(id)
  if WAITING[state] then
    local raw = redis.call('HGET', state == 'blocked' and K.next or K.jobs, id)
    local payload, created = unpack_record(raw or '')
    return raw, not payload or created <= moment - age
  end
  local ok, _, _, at = pcall(cmsgpack.unpack, redis.call('HGET', K.ended, id) or '')
  return nil, not ok or type(at) ~= 'number' or at <= moment - age
end

-- What is too young stays, and is stepped over.
local skip, dropped = tonumber(ARGV[6]) or 0, 0
local ids = redis.call('ZRANGE', K.set, skip, skip + limit - 1)
for _, id in ipairs(ids) do
  local raw, old = old_enough(id)
  if not old then
    skip = skip + 1
  elseif WAITING[state] then
    dropped = dropped + 1
    if raw then
      end_waiting(id, raw, 'purged', now)
      if state ~= 'blocked' then drop_ended(id) end
    else
      displace(id)
      bump('anomalies')
      tell(id)
    end
  else
    dropped = dropped + 1
    drop_ended(id)
    redis.call('ZREM', K.set, id)
  end
end
local more = #ids == limit and 1 or 0
if dropped > 0 then keep_answer(dropped, more, moment, skip) end
keep_memory(now)
commit()
publish()
return {ARGV[1], dropped, more, moment, skip}
