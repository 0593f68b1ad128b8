#!lua flags=allow-oom
-- destroy: drop a queue and its fail lane, whatever is in them; running attempts find their lease lost.
-- ARGV: call id. Answers: {call id, waiting and running jobs dropped}.
--- keys meta jobs next ready delayed blocked expiring active leases ended succeeded failed cancelled memory0 memory1 memory2 quarantine events costs fail_meta fail_jobs fail_next fail_ready fail_delayed fail_blocked fail_expiring fail_active fail_leases fail_ended fail_succeeded fail_failed fail_cancelled fail_memory0 fail_memory1 fail_memory2 fail_quarantine fail_events fail_costs destroyed
--- include clock

local GONE_AFTER, KNOWN_FOR = '10000', '60000'
local _, refusal = glance()
if refusal then return refusal end

-- Its memory goes with the queue, so that it is the one call that keeps its answer in a key of its own. A resend that
-- is not known as one would drop what was dispatched meanwhile.
local call, before = string.match(redis.call('GET', K.destroyed) or '', '^(.*) (%d+)$')
if call == ARGV[1] then return {ARGV[1], tonumber(before)} end

local dropped = redis.call('HLEN', K.jobs) + redis.call('HLEN', K.next)
local is_told = redis.call('HGET', K.meta, 'events') ~= '0'
local rest = {}
for _, name in ipairs(KEYS) do
  if name ~= K.events and name ~= K.destroyed then rest[#rest + 1] = name end
end
if redis.call('UNLINK', unpack(rest)) > 0 then
  redis.call('SET', K.destroyed, ARGV[1] .. ' ' .. fmt(dropped), 'PX', KNOWN_FOR)
end
redis.call('PUBLISH', K.meta .. ':hint', 'destroyed')
-- Who reads the stream is woken by an entry, and by nothing else; soon it is gone as well.
-- It is emptied and not dropped: in a new one the ids would begin anew, perhaps with one that was read.
redis.call('XTRIM', K.events, 'MAXLEN', '0')
if is_told then redis.call('XADD', K.events, '*', 'k', 'destroyed') end
redis.call('PEXPIRE', K.events, GONE_AFTER)
-- No id is a star: it stands for all of them.
redis.call('PUBLISH', K.meta .. ':done', '*')
redis.call('PUBLISH', K.fail_meta .. ':done', '*')
return {ARGV[1], dropped}
