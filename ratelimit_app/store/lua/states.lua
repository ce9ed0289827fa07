-- Purpose: the states that are one small text: fixed windows, counters of parts, meters.
-- Each is a struct whose first byte is its algorithm's code: 1 '<Bdd' start us, count; 2 '<Bdd' part us, number of
-- the current part, then the counts ('I4') of the part to come, the current one, and the ten before it;
-- 3, 4, 5 '<Bddd' stamp us, level, unit. ratelimit_app/core/algorithms says what they mean.
-- KEYS, ARGV, Returns: a part of the script that decide.lua begins.
local METER, COUNTER = '<Bddd', '<BddI4I4I4I4I4I4I4I4I4I4I4I4'
local FORMATS, SIZES = { '<Bdd', COUNTER, METER, METER, METER }, { 17, 65, 25, 25, 25 }

-- Gives nil for what is no state of ours.
local function decode(value)
  local code = string.byte(value)
  if not FORMATS[code] or #value ~= SIZES[code] then return nil end
  local v = { unpack_(FORMATS[code], value) }
  v[#v] = nil
  for i = 2, #v do
    if not (v[i] >= 0 and v[i] < 2 ^ 62) then return nil end
  end
  if v[2] + (v[4] or 1) == 0 or (code > 2 and v[4] == 0) or (code == 2 and v[2] == 0) then return nil end
  return v
end

local function write_state(key, v, us, period)
  call('SET', key, pack(FORMATS[v[1]], unpack(v)), 'PX', life(us, period))
end

-- A unit in parts of which whole numbers drain each microsecond, and how many do.
local function scale(period, limit)
  local shared, rest = period, limit
  while rest > 0 do shared, rest = rest, shared % rest end
  return period / shared, limit / shared
end

local function drained(v, unit, drain)
  local stamp, level = v[2], v[3]
  if v[4] ~= unit then level = ceil(level * unit / v[4]) end
  if now > stamp then return now, max(level - (now - stamp) * drain, 0) end
  return stamp, level
end

-- The counts of a counter at a time, by its own parts or sorted anew into others.
local function moved(v, part)
  local base = floor(now / part)
  if v[1] == 2 and v[2] == part then base = max(base, v[3]) end
  local to = { 2, part, base, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  for slot = 4, 15 do
    local target = slot + base - v[3]
    if v[2] ~= part then
      target = base + 5 - floor(min((v[3] + 6 - slot) * v[2] - 1, now) / part)
    end
    if target <= 15 then to[target] = to[target] + v[slot] end
  end
  return to
end

local function total(v)
  local sum = 0
  for slot = 4, 15 do sum = sum + v[slot] end
  return sum
end

-- The units that a state holds now, for an algorithm that takes over from it.
local function used(v, period, limit)
  if v[1] == 1 then return v[2] > now - period and v[3] or 0 end
  if v[1] == 2 then return total(moved(v, v[2])) end
  local unit, drain = scale(period, limit)
  local _, level = drained(v, unit, drain)
  return ceil(level / unit)
end

-- A state as it is now for a rule, whatever it was; `units`: what another algorithm had counted.
-- Gives it, the units that still fit, and whether it must be written even when nothing is charged.
local function current(v, units, code, period, limit, burst)
  local whole = max(limit, burst)
  if code == 1 then
    v = v and v[1] == 1 and v or { 1, now, min(units, whole) }
    if v[2] <= now - period or v[3] == 0 then v = { 1, now, 0 } end
    return v, limit - v[3], min(units, whole) > 0
  end
  if code == 2 then
    local part = ceil(period / 10)
    local own = v and v[1] == 2
    local to = moved(own and v or { 2, part, floor(now / part), 0, min(units, whole), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, part)
    return to, limit - total(to), min(units, whole) > 0 or (own and v[2] ~= part)
  end
  local unit, drain = scale(period, limit)
  local capacity = limit > 0 and burst * unit or 0
  if v and v[1] > 2 then
    local stamp, level = drained(v, unit, drain)
    v = { code, stamp, level, unit }
  else
    v = { code, now, min(units * unit, capacity), unit }
  end
  return v, floor((capacity - v[3]) / unit), units > 0
end

-- Microseconds until a state is empty.
local function reset_of(v, period, drain)
  if v[1] == 1 then return v[3] > 0 and v[2] + period - now or 0 end
  if v[1] > 2 then return v[3] > 0 and drain > 0 and v[2] - now + ceil(v[3] / drain) or 0 end
  for slot = 4, 15 do
    if v[slot] > 0 then return (v[3] + 16 - slot) * v[2] - now end
  end
  return 0
end

-- Microseconds until so many more units fit.
local function retry_of(v, short, period, limit, burst)
  if v[1] == 1 then return v[2] + period - now end
  if v[1] > 2 then
    local unit, drain = scale(period, limit)
    return v[2] - now + ceil((v[3] + short * unit - burst * unit) / drain)
  end
  for slot = 15, 4, -1 do
    short = short - v[slot]
    if short <= 0 then return (v[3] + 16 - slot) * v[2] - now end
  end
end

-- Charges a state in place. Gives the stamp and the units; `lease`: as many as fit up to it, as if used at its end.
local function charge_state(v, room, period, limit, burst, cost, lease)
  local units, ahead = max(cost, min(lease, room)), floor(period / 20)
  if v[1] > 2 then
    local unit, drain = scale(period, limit)
    local held, at = max(v[3], ahead * drain), now
    units = min(lease, floor((burst * unit - held) / unit))
    if units > cost then v[3], at = held, now + ahead else units = cost end
    v[3] = v[3] + units * unit
    return max(at, v[2]), units, floor((burst * unit - v[3]) / unit)
  end
  local at = now + (units > cost and ahead or 0)
  if v[1] == 1 then
    at, v[3] = max(min(at, v[2] + period - 1), v[2]), v[3] + units
  else
    at = max(at, v[3] * v[2])
    local slot = v[3] + 5 - floor(at / v[2])
    v[slot] = v[slot] + units
  end
  return at, units, room - units
end
