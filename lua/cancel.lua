#!lua flags=allow-oom
-- cancel: drop the waiting run of an id and mark the running one; the first in the server wins.
-- ARGV: call id, id, how a running one ends (kill: it is marked, and ends as cancelled whatever it answers; ask: it is
-- asked to stop, and what it answers stands), grace ms before a kill. Answers: {call id, 1 if there was a run to drop, mark or ask, else 0}.
--- keys meta jobs next ready delayed blocked expiring leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events
--- include clock
--- include meta
--- include order
--- include moment
--- include record
--- include span
--- include news
--- include quarantine
--- include lease
--- include batch
--- include memory
--- include answered
--- include place
--- include requests
--- include ending

local id, mode, grace = ARGV[2], ARGV[3], tonumber(ARGV[4])
if (mode ~= 'kill' and mode ~= 'ask') or not grace or not (grace >= 0 and grace < 2 ^ 45) then
  return redis.error_reply('BADARG cancel takes an id, kill or ask, and a grace')
end
local now, refusal = begin()
if refusal then return refusal end
local known = answered(1)
if known then
  commit()
  return known
end
local hit = 0
local lease = get_lease(id)
local waiting = redis.call('HGET', lease and K.next or K.jobs, id)
if waiting then
  end_waiting(id, waiting, 'cancelled', now)
  hit = 1
end
if lease then
  local is_asked = mode == 'ask'
  set_mark(id, lease, is_asked and ASKED or CANCELLED)
  local words = is_asked and {'ask', id, lease.token} or {'cancel', id, lease.token, fmt(grace)}
  redis.call('PUBLISH', K.meta .. ':hint', table.concat(words, ' '))
  hit = 1
end
if hit == 1 then keep_answer(hit) end
keep_memory(now)
commit()
publish()
return {ARGV[1], hit}
