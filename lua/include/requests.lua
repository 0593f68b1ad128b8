-- The last dispatches of an explicit id, as ",nonce,nonce", so that a resend of any of them is known
-- even after a newer dispatch of the same id. A generated id is its own request.
local KEPT = 8

local function knows(requests, req)
  return requests ~= nil and string.find(requests .. ',', ',' .. req .. ',', 1, true) ~= nil
end

local function add_request(requests, req)
  local all = (requests or '') .. ',' .. req
  local _, n = string.gsub(all, ',', ',')
  while n > KEPT do
    all = string.match(all, '^[^,]*,[^,]*(,.*)$')
    n = n - 1
  end
  return all
end

local function join_requests(a, b)
  for req in string.gmatch(b or '', '[^,]+') do a = add_request(a, req) end
  return a
end
