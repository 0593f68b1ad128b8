-- What was settled or dropped lately, so that a resend is known as one. Three hashes of 30 s each are
-- used in turn: an entry lives 60 to 90 s, forgetting is one UNLINK, and an idle queue forgets by
-- itself because each hash also expires.
local SPAN, BUCKETS = 30000, 3
local remembered, remembered_words = {}, {}

local function last_epoch() return math.floor(number(meta.epoch) or 0) end
local function bucket(epoch) return K['memory' .. (epoch % BUCKETS)] end

local function remember(field, value)
  remembered[field] = value
  remembered_words[#remembered_words + 1] = field
  remembered_words[#remembered_words + 1] = value
end

-- Newest first: an id that was remembered before may have been dispatched anew since.
local function recall(field)
  local epoch = last_epoch()
  return remembered[field] or redis.call('HGET', bucket(epoch), field)
    or redis.call('HGET', bucket(epoch - 1), field) or redis.call('HGET', bucket(epoch - 2), field)
end

-- Before `commit`, in every script that remembers.
local function keep_memory(now)
  if #remembered_words == 0 then return end
  local epoch = math.floor(now / SPAN)
  local last = last_epoch()
  if epoch ~= last then
    for e = math.max(last + 1, epoch - BUCKETS + 1), epoch do redis.call('UNLINK', bucket(e)) end
    note('epoch', epoch)
  end
  many('HSET', bucket(epoch), remembered_words)
  -- By our clock and not from now on: while that stands still because the server's was set back, a
  -- hash that expired would be filled again without an end.
  if epoch ~= last then redis.call('PEXPIREAT', bucket(epoch), fmt((epoch + BUCKETS) * SPAN)) end
end
