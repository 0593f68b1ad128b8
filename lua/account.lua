#!lua flags=allow-oom
-- account: add what attempts have cost to the queue's sums, maxima and histograms.
-- ARGV: call id, then name, value ... Answers: {call id, 1 added, 0 this very call was added before}.
-- Names are of a fixed set, so that nobody can grow the hash: n, k_<kind>, wall, cpu (sums, in microseconds),
-- wall_max, cpu_max, memory_max, w<bucket>, m<bucket>.
--- keys meta memory0 memory1 memory2 costs
--- include clock
--- include meta
--- include batch
--- include memory

local KEPT_FOR, MOST = '604800000', 2 ^ 50
local WALL_BUCKETS, MEMORY_BUCKETS = 80, 41
local KINDS = {done = true, error = true, permanent = true, timeout = true, cpu = true, memory = true, crash = true,
  stall = true, cancelled = true}
local SUMS = {n = true, wall = true, cpu = true}
local MAXIMA = {wall_max = true, cpu_max = true, memory_max = true}

local function is_sum(name)
  if SUMS[name] then return true end
  local kind = string.match(name, '^k_(%l+)$')
  if kind then return KINDS[kind] end
  local axis, digits = string.match(name, '^([wm])(%d%d?)$')
  if not axis or (#digits > 1 and string.sub(digits, 1, 1) == '0') then return false end
  return tonumber(digits) < (axis == 'w' and WALL_BUCKETS or MEMORY_BUCKETS)
end

for i = 2, #ARGV, 2 do
  local value = tonumber(ARGV[i + 1] or nil)
  if not is_sum(ARGV[i]) and not MAXIMA[ARGV[i]] then
    return redis.error_reply('BADARG no such cost: ' .. string.sub(ARGV[i], 1, 40))
  end
  if not value or not (value >= 0 and value <= MOST) or value % 1 ~= 0 then
    return redis.error_reply('BADARG a cost is a whole number from 0 on')
  end
end
if #ARGV < 3 or #ARGV > 401 then return redis.error_reply('BADARG account takes 1 to 200 names and values') end

local now, refusal = begin()
if refusal then return refusal end
local call = '=' .. ARGV[1]
local is_new = not recall(call)
if is_new then
  remember(call, '1')
  for i = 2, #ARGV, 2 do
    local name, value = ARGV[i], tonumber(ARGV[i + 1])
    if is_sum(name) then
      -- What somebody has written there by hand is no number, or too large a one: it begins anew.
      local before = tonumber(redis.call('HGET', K.costs, name) or nil) or 0
      redis.call('HSET', K.costs, name, fmt(before >= 0 and before + value < 2 ^ 53 and before + value or value))
    elseif value > (tonumber(redis.call('HGET', K.costs, name) or nil) or -1) then
      redis.call('HSET', K.costs, name, fmt(value))
    end
  end
  redis.call('PEXPIRE', K.costs, KEPT_FOR)
end
keep_memory(now)
commit()
return {ARGV[1], is_new and 1 or 0}
