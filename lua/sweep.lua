#!lua flags=allow-oom
-- sweep: put back what lapsed, end what expired, promote what is due, without leasing anything.
-- ARGV: call id, is there a fail lane. Answers: {call id, ids whose lease had lapsed}.
--- keys meta jobs next ready delayed blocked expiring active leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events fail_meta fail_jobs fail_ready fail_expiring fail_events
local HAS_LANE = ARGV[2] == '1'
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
--- include place
--- include requests
--- include ending
--- include finish
--- include again
--- include sweep
--- include room

local now, refusal = begin()
if refusal then return refusal end
local was_full = room() == 0
local ids, gone = sweep(now, 100), {}
for _, id in ipairs(ids) do
  if redis.call('HEXISTS', K.leases, id) == 0 then gone[#gone + 1] = id end
end
expire(now, 100)
promote(now, 500)
trim(now, 500)
ring_if_freed(was_full)
keep_memory(now)
commit()
publish()
return {ARGV[1], gone}
