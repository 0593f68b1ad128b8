#!lua flags=allow-oom
-- lock: take a lock, keep it, or give it back; its holder is known by a token that nobody else has.
-- ARGV: call id, 'take', 'keep' or 'free', token, length in ms.
-- Answers: {call id, 1 if the lock is the token's (or was, and is free now), else 0, ms until it lapses}.
--- keys meta lock
--- include clock

local what, token, length = ARGV[2], ARGV[3], tonumber(ARGV[4])
if not (what == 'take' or what == 'keep' or what == 'free') then
  return redis.error_reply('BADARG a lock is taken, kept or freed')
end
if not token or token == '' or not length or length < 1 or length >= 2 ^ 45 then
  return redis.error_reply('BADARG a lock has a token, and lasts for a millisecond at least')
end
local _, refusal = glance()
if refusal then return refusal end

-- A lock that was given back says so for a while, so that the same request sent again is known.
local FREED, FREED_FOR = '-', 60000
local holder = redis.call('GET', K.lock)
local free = not holder or string.sub(holder, 1, 1) == FREED

if what == 'free' then
  if holder == FREED .. token then return {ARGV[1], 1, 0} end
  if holder ~= token then return {ARGV[1], 0, 0} end
  redis.call('SET', K.lock, FREED .. token, 'PX', FREED_FOR)
  redis.call('PUBLISH', K.lock .. ':bell', '1')
  return {ARGV[1], 1, 0}
end
if holder == token or (what == 'take' and free) then
  redis.call('SET', K.lock, token, 'PX', string.format('%.0f', length))
  return {ARGV[1], 1, length}
end
return {ARGV[1], 0, free and 0 or redis.call('PTTL', K.lock)}
