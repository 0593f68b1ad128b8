-- The limit on how many jobs of a queue run at once, whoever runs them. It is held where jobs are taken, by
-- one script at a time, and so cannot be passed: neither by two workers at once nor by a resend.
local function room()
  local limit = tonumber(meta.limit or nil)
  if not limit or limit < 0 then return math.huge end
  return math.max(limit - redis.call('ZCARD', K.active), 0)
end

-- Whoever came while there was no room went away with nothing, and is called back by the first who makes some.
local function ring_if_freed(was_full)
  if was_full and room() > 0 and redis.call('ZCARD', K.ready) > 0 then ring() end
end
