-- Purpose: give back the units that one decision charged, each at most once and only while they count.
-- This file reads the call; then follow, as one script: states.lua, refund_units.lua.
-- KEYS: the keys that were charged.
-- ARGV: 1 now in microseconds, or '' for the server's clock (tests alone send one);
--       2.. one for each key: struct '<Bdddd' of algorithm (as in decide.lua), first stamp us, units, period us,
--       limit: of the charge.
-- Returns: integer, the number of units given back; of a meter all that were asked for, when any still weigh.
local call, attempt, pack, unpack_ = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local now = ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = now + 0
end
