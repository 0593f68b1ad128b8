-- Of a queue's events: how many are kept, how long after the last one, how often that is pushed on (ms).
local EVENTS_KEPT, EVENTS_FOR, EVENTS_TICK = '1000', '60000', 10000
