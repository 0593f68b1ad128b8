-- What this call has to tell, told once at its end. The channel `done` carries the ids of the runs that
-- ended, separated by spaces, so that who waits for one of many need not ask for them all again and again.
local MAX_TOLD = 1000
local told = {}

-- where: the meta key of the queue it ended in, if that is not this one.
local function tell(id, where)
  local ids = told[where or K.meta] or {}
  told[where or K.meta] = ids
  ids[#ids + 1] = id
end

-- Behind `commit`, in every script that can end a run.
local function publish()
  for where, ids in pairs(told) do
    for i = 1, #ids, MAX_TOLD do
      redis.call('PUBLISH', where .. ':done', table.concat(ids, ' ', i, math.min(i + MAX_TOLD - 1, #ids)))
    end
  end
end
