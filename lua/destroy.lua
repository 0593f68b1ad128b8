#!lua flags=allow-oom
-- destroy: drop a queue and its fail lane, whatever is in them; running attempts find their lease lost.
-- ARGV: call id. Answers: {call id, waiting and running jobs dropped}.
--- keys meta jobs next ready delayed blocked expiring active leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events costs fail_meta fail_jobs fail_next fail_ready fail_delayed fail_blocked fail_expiring fail_active fail_leases fail_ended fail_succeeded fail_failed fail_cancelled fail_memory0 fail_memory1 fail_memory2 fail_quarantine fail_events fail_costs
--- include clock

local GONE_AFTER = '10000'
local _, refusal = glance()
if refusal then return refusal end
local dropped = redis.call('HLEN', K.jobs) + redis.call('HLEN', K.next)
local is_told = redis.call('HGET', K.meta, 'events') ~= '0'
redis.call('UNLINK', unpack(KEYS))
redis.call('PUBLISH', K.meta .. ':hint', 'destroyed')
-- Who reads the stream is woken by an entry, and by nothing else; soon it is gone as well.
if is_told then
  redis.call('XADD', K.events, '*', 'k', 'destroyed')
  redis.call('PEXPIRE', K.events, GONE_AFTER)
end
-- No id is a star: it stands for all of them.
redis.call('PUBLISH', K.meta .. ':done', '*')
redis.call('PUBLISH', K.fail_meta .. ':done', '*')
return {ARGV[1], dropped}
