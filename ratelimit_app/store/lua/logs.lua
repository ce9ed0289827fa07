-- Purpose: logs of stamps, each unit with its own: a ZSet up to 128, whose members are their scores, and a LIST above.
-- A key of another form is turned into the rule's own when it is charged. A form of 'carried' stands for as many
-- stamps from now on as another algorithm had counted; 'foreign' for a key that is none of ours, and counts as absent.
-- KEYS, ARGV, Returns: a part of the script that decide.lua begins.
local CHUNK = 1000

-- How many stamps at the head of a list have expired: in doubling steps, then between the last two.
local function expired(key, length, cut)
  if call('LINDEX', key, 0) + 0 > cut then return 0 end
  if call('LINDEX', key, -1) + 0 <= cut then return length end
  local low, step = 0, 1
  while low + step < length - 1 and call('LINDEX', key, low + step) + 0 <= cut do low, step = low + step, step * 2 end
  local high = min(low + step, length - 1)
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if call('LINDEX', key, middle) + 0 <= cut then low = middle else high = middle end
  end
  return high
end

-- A look changes nothing: who peeks with another period must not cut the log short.
local function read_list(key, length, cut, look)
  if length == 0 then return nil, 0 end
  if not (tonumber(call('LINDEX', key, 0)) and tonumber(call('LINDEX', key, -1))) then return 'foreign', 0 end
  local gone = expired(key, length, cut)
  if gone > 0 and not look then call('LTRIM', key, gone, -1) end
  return 'list', length - gone
end

-- Gives the form, the units that count, and whether there was a key.
local function read_log(key, period, limit, whole, look)
  local cut = now - period
  local found
  if whole > 128 then
    found = attempt('LLEN', key)
    if type(found) == 'number' then
      local form, n = read_list(key, found, cut, look)
      return form, n, found > 0
    end
  elseif not look then
    found = attempt('ZREMRANGEBYSCORE', key, '-inf', cut)
    if type(found) == 'number' then
      local n = call('ZCARD', key)
      return 'zset', n, n + found > 0
    end
  end
  local kind = call('TYPE', key).ok
  if kind == 'none' then return nil, 0, false end
  if kind == 'zset' then
    if look then return kind, call('ZCOUNT', key, string.format('(%.0f', cut), '+inf'), true end
    call('ZREMRANGEBYSCORE', key, '-inf', cut)
    return kind, call('ZCARD', key), true
  elseif kind == 'list' then
    local form, n = read_list(key, call('LLEN', key), cut, look)
    return form, n, true
  end
  local v = kind == 'string' and decode(call('GET', key))
  local n = v and min(used(v, period, limit), whole) or 0
  return n > 0 and 'carried' or 'foreign', n, true
end

-- The stamp at an index from the end.
local function stamp(key, form, n, index)
  if form == 'carried' then return now + n + index end
  if form == 'list' then return call('LINDEX', key, index) + 0 end
  return call('ZRANGE', key, index, index, 'WITHSCORES')[2] + 0
end

local function append(key, stamps, large)
  if large then
    for from = 1, #stamps, CHUNK do
      call('RPUSH', key, unpack(stamps, from, min(from + CHUNK - 1, #stamps)))
    end
  else
    for _, each in ipairs(stamps) do call('ZADD', key, each, each) end
  end
end

local function range(first, units)
  local stamps = {}
  for i = 1, units do stamps[i] = first + i - 1 end
  return stamps
end

-- Brings a log into the form of its rule, so that it can be charged; gives the form.
local function settle(key, form, n, large)
  local stamps = {}
  if form == 'carried' then
    stamps = range(now, n)
  elseif form == 'list' and not large and n > 0 then
    stamps = call('LRANGE', key, 0, -1)
  elseif form == 'zset' and large and n > 0 then
    for i, each in ipairs(call('ZRANGE', key, 0, -1, 'WITHSCORES')) do
      if i % 2 == 0 then stamps[i / 2] = each end
    end
  elseif form ~= 'foreign' then
    return large and 'list' or 'zset'
  end
  call('DEL', key)
  append(key, stamps, large)
  return large and 'list' or 'zset'
end

local function charge_log(key, form, n, period, large, units, ahead)
  local first = now
  form = settle(key, form, n, large)
  if large or units > 1 or call('ZADD', key, 'NX', now, now) == 0 then
    first = now + ahead
    if n > 0 then first = max(first, stamp(key, form, n, -1) + 1) end
    append(key, range(first, units), large)
  end
  call('PEXPIRE', key, life(first + units - 1 + period - now, period))
  return first
end
