-- One call for many members, in pieces, since unpack has a limit.
local PIECE = 4000
local function many(command, key, words)
  for i = 1, #words, PIECE do
    redis.call(command, key, unpack(words, i, math.min(i + PIECE - 1, #words)))
  end
end

local function fetch(key, ids)
  if #ids == 0 then return {} end
  return redis.call('HMGET', key, unpack(ids))
end
