-- Purpose: give back the units that one decision charged, each at most once and only while they count.
-- KEYS: the logs that were charged.
-- ARGV: 1 now in microseconds, or '' for the server's clock (tests alone send one);
--       2.. one for each log: struct '<ddd' of first stamp us, units, period us.
-- Returns: integer, the number of units given back.
local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = now + 0
end
local units = 0
for i, key in ipairs(KEYS) do
  local first, count, period = struct.unpack('<ddd', ARGV[1 + i])
  if first > now - period then
    local gone = redis.pcall('ZREMRANGEBYSCORE', key, first, first + count - 1)
    if type(gone) == 'number' then units = units + gone end
  end
end
return units
