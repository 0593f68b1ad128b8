-- What nobody can read is set aside for a person to look at, never in the way of its neighbours.
local function quarantine(id, raw)
  bump('anomalies')
  tell(id)
  if redis.call('HLEN', K.quarantine) < 100 then redis.call('HSET', K.quarantine, id, raw) end
end
