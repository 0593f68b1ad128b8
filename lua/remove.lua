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
--- include place
--- include requests
--- include ending

local id = ARGV[2]
local now, refusal = begin()
if refusal then return refusal end
if redis.call('HEXISTS', K.leases, id) == 1 then
  commit()
  return {ARGV[1], -1}
end
local raw = redis.call('HGET', K.jobs, id)
local known = raw or redis.call('HEXISTS', K.ended, id) == 1
if not known then
  commit()
  return {ARGV[1], 0}
end
if raw then end_waiting(id, raw, 'removed', now) end
drop_ended(id)
keep_memory(now)
commit()
publish()
return {ARGV[1], 1}
