#!lua flags=allow-oom
-- remove: drop one job with its record and result; refused while it runs.
-- ARGV: call id, id. Answers: {call id, 1 dropped, 0 there was none, -1 it runs}.
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
--- include answered
--- include place
--- include requests
--- include ending

local id = ARGV[2]
local now, refusal = begin()
if refusal then return refusal end
local known = answered(1)
if known then
  commit()
  return known
end
if redis.call('HEXISTS', K.leases, id) == 1 then
  commit()
  return {ARGV[1], -1}
end
local raw = redis.call('HGET', K.jobs, id)
if not raw and redis.call('HEXISTS', K.ended, id) == 0 then
  commit()
  return {ARGV[1], 0}
end
if raw then end_waiting(id, raw, 'removed', now) end
drop_ended(id)
keep_answer(1)
keep_memory(now)
commit()
publish()
return {ARGV[1], 1}
