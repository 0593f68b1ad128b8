#!lua
-- revive: make a failed job ready again with its counters at zero, and drop its waiting failure job.
-- ARGV: call id, id. Answers: {call id, 1 revived, 0 there is no such dead letter, -1 the id waits or runs already}.
--- keys meta jobs next ready delayed blocked expiring leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events fail_meta fail_jobs fail_ready fail_delayed fail_expiring fail_leases fail_events
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
local ok, state, _, _, _, created, ext = pcall(cmsgpack.unpack, redis.call('HGET', K.ended, id) or '')
if not ok or state ~= 'f' or not readable(ext) or type(ext.P) ~= 'string' or not sane(created) then
  commit()
  return {ARGV[1], 0}
end
if redis.call('HEXISTS', K.jobs, id) == 1 or redis.call('HEXISTS', K.leases, id) == 1 then
  commit()
  return {ARGV[1], -1}
end
local payload, failure_job = ext.P, ext.F
local kept = {g = bump('seq'), q = ext.q, o = ext.o, p = ext.p, m = ext.m, y = ext.y, f = ext.f, u = now,
  i = ext.i, j = ext.j, z = ext.z, b = ext.b, n = ext.n}
forget_ended(id)
redis.call('HSET', K.jobs, id, pack_record(payload, created, kept))
place(id, created, kept, now)
bump('created')
bump('revived')
happened('dispatched', id)
if type(failure_job) == 'string' and redis.call('HEXISTS', K.fail_leases, failure_job) == 0
    and redis.call('HDEL', K.fail_jobs, failure_job) == 1 then
  redis.call('ZREM', K.fail_ready, failure_job)
  redis.call('ZREM', K.fail_delayed, failure_job)
  redis.call('ZREM', K.fail_expiring, failure_job)
  redis.call('HINCRBY', K.fail_meta, 'cancelled', 1)
  tell(failure_job, K.fail_meta)
  happened('cancelled', failure_job, nil, K.fail_meta)
end
keep_answer(1)
keep_memory(now)
commit()
publish()
ring()
return {ARGV[1], 1}
