-- Purpose: take units out of a log or a state; what is of another algorithm by now keeps what it has.
-- KEYS, ARGV, Returns: the end of the script that refund.lua begins.

-- The index at which a stamp is in a list, or would be.
local function find(key, length, first)
  local low, high = 0, length
  while low < high do
    local middle = floor((low + high) / 2)
    if call('LINDEX', key, middle) + 0 < first then low = middle + 1 else high = middle end
  end
  return low
end

-- The stamps of one charge lie together. Out of the middle they go in one pass: marked first, then removed.
local function from_list(key, first, units)
  local length = call('LLEN', key)
  local from = find(key, length, first)
  local to = find(key, length, first + units) - 1
  if to == length - 1 and from <= to then
    call('LTRIM', key, 0, from - 1 - length)
  elseif from <= to then
    for i = from, to do call('LSET', key, i, '') end
    call('LREM', key, from - to - 1, '')
  end
  return to - from + 1
end

local function from_log(key, first, units)
  local gone = attempt('ZREMRANGEBYSCORE', key, first, first + units - 1)
  if type(gone) == 'number' then return gone end
  return call('TYPE', key).ok == 'list' and tonumber(call('LINDEX', key, 0)) and from_list(key, first, units) or 0
end

local function from_meter(v, first, units, period, limit)
  local unit, drain = scale(period, limit)
  local weighs = units * unit - max(now - first, 0) * drain
  if weighs <= 0 or v[3] == 0 then return 0 end
  if v[4] ~= unit then weighs = floor(weighs * v[4] / unit) end
  v[3] = max(v[3] - weighs, 0)
  return units
end

local function from_state(v, first, units, period, limit)
  local at, back = 3, 0
  if v[1] > 2 then return from_meter(v, first, units, period, limit) end
  if v[1] == 1 then
    local ends = v[2] + period
    if ends <= now or first < v[2] or first >= ends then return 0 end
  else
    local part = floor(first / v[2])
    at = v[3] + 5 - part
    if v[2] ~= ceil(period / 10) or at < 4 or at > 15 or part + 10 < max(v[3], floor(now / v[2])) then return 0 end
  end
  back = min(units, v[at])
  v[at] = v[at] - back
  return back
end

local units = 0
for i, key in ipairs(KEYS) do
  local code, first, count, period, limit = unpack_('<Bdddd', ARGV[1 + i])
  if code == 0 then
    if first > now - period then units = units + from_log(key, first, count) end
  else
    local value = attempt('GET', key)
    local v = type(value) == 'string' and decode(value)
    local back = v and min(v[1], 3) == min(code, 3) and from_state(v, first, count, period, limit) or 0
    if back > 0 then call('SET', key, pack(FORMATS[v[1]], unpack(v)), 'KEEPTTL') end
    units = units + back
  end
end
return units
