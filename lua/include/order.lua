-- The order of waiting jobs. `ready` is ordered by priority class, then by arrival: a score of
-- (255 - priority) * 2^44 + sequence is exact in a double. `delayed` carries the priority in the low
-- byte of its score, so that promotion need not open a record.
local PRIORITY, CLASS = 100, 17592186044416

local function ready_score(prio, seq) return (255 - prio) * CLASS + seq end
local function delayed_score(prio, at) return at * 256 + 255 - prio end
