#!lua flags=allow-oom
-- cancel: drop the waiting run of an id and mark the running one; the first in the server wins.
-- ARGV: call id, id. Answers: {call id, 1 if a run will never finish because of this, else 0}.
--- keys meta jobs next ready delayed blocked expiring leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events
--- include clock
--- include meta
--- include record
--- include news
--- include quarantine
--- include lease
--- include batch
--- include memory
--- include place
--- include requests
--- include ending

local id = ARGV[2]
local now, refusal = begin()
if refusal then return refusal end
local hit = 0
local lease = get_lease(id)
local waiting = redis.call('HGET', lease and K.next or K.jobs, id)
if waiting then
  end_waiting(id, waiting, 'cancelled', now)
  hit = 1
end
if lease then
  set_mark(id, lease, CANCELLED)
  redis.call('PUBLISH', K.meta .. ':hint', 'cancel ' .. id .. ' ' .. lease.token)
  hit = 1
end
keep_memory(now)
commit()
publish()
return {ARGV[1], hit}
