-- Where a waiting job stands.
-- score: the place it had before, or nil to join at the end. Answers whether somebody should look.
local function place(id, created, ext, now, score)
  local at = run_at(created, ext)
  if ext.x then redis.call('ZADD', K.expiring, fmt(ext.x), id) end
  if at <= now then
    redis.call('ZADD', K.ready, fmt(score or ready_score(priority(ext), bump('seq'))), id)
    return true
  end
  redis.call('ZADD', K.delayed, fmt(delayed_score(priority(ext), at)), id)
  return redis.call('ZRANK', K.delayed, id) == 0
end

-- Out of every set a waiting job may stand in; the record is the caller's affair.
local function displace(id)
  redis.call('ZREM', K.ready, id)
  redis.call('ZREM', K.delayed, id)
  redis.call('ZREM', K.blocked, id)
  redis.call('ZREM', K.expiring, id)
end
