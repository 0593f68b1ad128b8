-- What an operator's call has answered, by its call id, so that a resend is given the same answer and does nothing:
-- done again, a cancel whose reply was lost would take the job that was dispatched under its id meanwhile.
-- A call that changed nothing is not kept. Nobody has seen its answer, so it may as well have come now; and any
-- number of cancels that find nothing take no memory.
local function answered(numbers)
  local kept, answer = recall('=' .. ARGV[1]), {ARGV[1]}
  if not kept then return nil end
  for word in string.gmatch(kept, '%S+') do answer[#answer + 1] = number(word) end
  return #answer == numbers + 1 and answer or nil
end

local function keep_answer(...)
  local words = {...}
  for i, n in ipairs(words) do words[i] = fmt(n) end
  remember('=' .. ARGV[1], table.concat(words, ' '))
end
