-- One reading of the server's clock per script, never backwards, in whole milliseconds.
-- Two readings inside one script may differ, and a client's clock is never asked.
local PROTOCOL = '2'

local function wall()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function fmt(n) return string.format('%.0f', n) end

-- Numbers that a strange hand may have written: NaN and the infinities are numbers to Lua, but not to a
-- sorted set, and a script that finds out between two writes has done half of its work.
local FARTHEST = 9007199254740992
local function sane(v) return type(v) == 'number' and v >= -FARTHEST and v <= FARTHEST end
local function number(text)
  local n = tonumber(text or nil)
  return sane(n) and n or nil
end

local function refuse_version(found)
  return redis.error_reply('PROTOCOL this queue holds key layout ' .. tostring(found) ..
    ', this client speaks ' .. PROTOCOL)
end

-- For scripts that only read: returns now, or nothing and a refusal.
local function glance()
  local m = redis.call('HMGET', K.meta, 'v', 'now')
  if m[1] and m[1] ~= PROTOCOL then return nil, refuse_version(m[1]) end
  return math.max(wall(), number(m[2]) or 0)
end
