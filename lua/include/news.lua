-- What this call has to tell, told once at its end. The channel `done` carries the ids of the runs that ended,
-- separated by spaces, so that who waits for one of many need not ask for them all again and again. The stream
-- `events` gets one entry for each kind of event, however many jobs it happened to.
local MAX_TOLD = 1000
local MAX_DETAIL, MAX_READ = 200, 262144
local told, streams = {}, {}

-- where: the meta key of the queue it ended in, if that is not this one.
local function tell(id, where)
  local ids = told[where or K.meta] or {}
  told[where or K.meta] = ids
  ids[#ids + 1] = id
end

-- detail: JSON, or {kind, error, attempt} of which JSON is made; told only of one that happened alone.
local function happened(kind, id, detail, where)
  local stream = streams[where or K.meta]
  if not stream then
    stream = {}
    streams[where or K.meta] = stream
  end
  local event = stream[kind]
  if not event then
    event = {ids = {}, detail = detail}
    stream[kind] = event
    stream[#stream + 1] = kind
  end
  event.ids[#event.ids + 1] = id
end

local function cut(word) return type(word) == 'string' and string.sub(word, 1, MAX_DETAIL) or nil end

-- An error is a record of TaskHive's own; who wrote something else there gets no detail.
local function told_error(detail)
  local ok, read = pcall(cjson.decode, #detail.error <= MAX_READ and detail.error or '')
  if not ok or type(read) ~= 'table' then read = {} end
  local left = read.retries_left
  return cjson.encode({kind = cut(detail.kind), attempt = detail.attempt, type = cut(read.type),
    message = cut(read.message), retries_left = type(left) == 'number' and left or nil})
end

local function add_events(key, stream, worker)
  for _, kind in ipairs(stream) do
    local event = stream[kind]
    local words, is_one = {'k', kind}, #event.ids == 1
    if kind == 'dispatched' and not is_one then words[3], words[4] = 'n', #event.ids
    else words[3], words[4] = 'i', table.concat(event.ids, ' ') end
    if worker and kind ~= 'cancelled' and kind ~= 'stalled' then words[5], words[6] = 'w', worker end
    local detail = is_one and event.detail
    if detail then
      words[#words + 1] = 'd'
      words[#words + 1] = type(detail) == 'table' and told_error(detail) or detail
    end
    redis.call('XADD', key, 'MAXLEN', '~', EVENTS_KEPT, '*', unpack(words))
  end
  -- An idle queue is to be as small a minute after its last job as it was before its first.
  redis.call('PEXPIRE', key, EVENTS_FOR)
end

-- Behind `commit`, in every script that can end a run or has something to tell.
local function publish(worker)
  for where, ids in pairs(told) do
    for i = 1, #ids, MAX_TOLD do
      redis.call('PUBLISH', where .. ':done', table.concat(ids, ' ', i, math.min(i + MAX_TOLD - 1, #ids)))
    end
  end
  for where, stream in pairs(streams) do
    if where ~= K.meta then
      if redis.call('HGET', where, 'events') ~= '0' then add_events(K.fail_events, stream) end
    elseif meta.events ~= '0' then
      add_events(K.events, stream, worker)
    end
  end
end
