#!lua flags=no-writes
-- stats: the exact numbers of a queue at one instant.
-- ARGV: call id. Answers: {call id, now, ready, delayed, blocked, active, dead, oldest wait ms or -1, meta as a list}.
--- keys meta jobs ready delayed blocked active failed
--- include clock
--- include order
--- include moment
--- include record
--- include place

local now, refusal = glance()
if refusal then return refusal end

-- The longest waiting job heads its priority class, and there are at most 256 classes.
local oldest, class = -1, 0
while class <= 255 do
  local head = redis.call('ZRANGEBYSCORE', K.ready, fmt(class * CLASS), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then break end
  class = math.floor(tonumber(head[2]) / CLASS) + 1
  local payload, created, ext = unpack_record(redis.call('HGET', K.jobs, head[1]) or '')
  -- A failure job has the time of the queue that made it, which may be ahead of the lane's: it waits since now.
  if payload then oldest = math.max(oldest, now - run_at(created, ext), 0) end
end
return {ARGV[1], now, redis.call('ZCARD', K.ready), redis.call('ZCARD', K.delayed), redis.call('ZCARD', K.blocked),
  redis.call('ZCARD', K.active), redis.call('ZCOUNT', K.failed, '(' .. fmt(now), '+inf'), oldest, redis.call('HGETALL', K.meta)}
