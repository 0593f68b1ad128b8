#!lua flags=allow-oom
-- configure: pause, resume, and the limits that hold without a handler: names and values, '' to remove one.
-- ARGV: call id, then name, value ... Answers: {call id, 1}. A resend sets nothing: a pause whose reply was lost must
-- not hold back what somebody has resumed since.
--- keys meta memory0 memory1 memory2
--- include clock
--- include meta
--- include batch
--- include memory
--- include answered

local KNOWN = {paused = true, depth = true, max_stalls = true, min_backoff = true, max_backoff = true,
  result_ttl = true, failure_ttl = true, config = true, events = true, limit = true}
for i = 2, #ARGV, 2 do
  if not KNOWN[ARGV[i]] or not ARGV[i + 1] then return redis.error_reply('BADARG no such setting: ' .. ARGV[i]) end
  local number = tonumber(ARGV[i + 1])
  if ARGV[i] ~= 'config' and ARGV[i + 1] ~= '' and not (number and number >= -1 and number < 2 ^ 45) then
    return redis.error_reply('BADARG ' .. ARGV[i] .. ' is a number from -1 on')
  end
end
local now, refusal = begin()
if refusal then return refusal end
local known = answered(1)
if known then
  commit()
  return known
end
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', K.meta, ARGV[i])
  else redis.call('HSET', K.meta, ARGV[i], ARGV[i + 1]) end
end
keep_answer(1)
keep_memory(now)
commit()
ring()
return {ARGV[1], 1}
