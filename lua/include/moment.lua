-- When a job was dispatched, as its record holds it: the milliseconds since 2024 in a string of five bytes. With its
-- head that is six where a number takes nine, and those three put the record of a job with 100 bytes of arguments
-- into the next smaller class of the server's allocator: 16 bytes of every job that waits. What five bytes cannot
-- hold (before 2024, from the end of 2058 on) stays a number, so that no clock is wrong enough to lose a job.
local FIRST, BEYOND = 1704067200000, 1704067200000 + 2 ^ 40

local function pack_moment(ms)
  if ms < FIRST or ms >= BEYOND or ms % 1 ~= 0 then return ms end
  local high, low = math.floor((ms - FIRST) / 65536), (ms - FIRST) % 65536
  return string.char(math.floor(high / 65536), math.floor(high / 256) % 256, high % 256,
    math.floor(low / 256), low % 256)
end

local function read_moment(value)
  if type(value) ~= 'string' then return sane(value) and value or nil end
  if #value ~= 5 then return nil end
  local a, b, c, d, e = string.byte(value, 1, 5)
  return FIRST + (((a * 256 + b) * 256 + c) * 256 + d) * 256 + e
end
