-- Purpose: look at every blacklist mark and rule of one request, then charge all rules or none.
-- KEYS: the marks (ARGV[1] of them), then one log for each rule.
-- ARGV: 1 number of marks; 2 now in microseconds, or '' for the server's clock (tests alone send one);
--       3.. one for each rule: struct '<BBdddddd' of algorithm (0 sliding_window), flags (1 shadow, 2 look),
--       period us, limit, burst, cost, starts us, ends us (0: no bound).
-- Returns: struct '<BBdd' of verdict (0 passed, 1 limited, 2 blocked), number of the mark, now us, ban's end us
--       (0: never); unless blocked, then for each rule '<Bdddd' of state (0 passed, 1 over, 2 asleep), remaining,
--       retry us (-1: never), reset us, at us (first stamp charged, else now).
-- A log is a ZSet whose members are their own scores: the stamps of the admitted units, each its own.
local call, pcall_, unpack_ = redis.call, redis.pcall, struct.unpack
local marks = tonumber(ARGV[1])
local rules = #KEYS - marks
local now = ARGV[2]
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = now + 0
end

if marks > 0 and call('EXISTS', unpack(KEYS, 1, marks)) > 0 then
  local longest, at
  for i = 1, marks do
    local value = pcall_('GET', KEYS[i])
    local expires = type(value) == 'string' and tonumber(value)
    if expires == 0 then expires = math.huge end
    if expires and expires > now and (not longest or expires > longest) then longest, at = expires, i end
  end
  if longest then
    if longest == math.huge then longest = 0 end
    return struct.pack('<BBdd', 2, at, now, longest)
  end
end

-- A key of another type counts as absent: it is dropped when the rule charges. Other errors are the caller's.
-- A look changes nothing: who peeks with another period must not cut the log short.
local foreign = {}
local function count(key, period, look)
  local found
  if look then
    found = pcall_('ZCOUNT', key, string.format('(%.0f', now - period), '+inf')
  else
    found = pcall_('ZREMRANGEBYSCORE', key, '-inf', now - period)
  end
  if type(found) == 'table' then
    if not string.find(found.err, 'WRONGTYPE', 1, true) then return nil, found end
    foreign[key] = true
    return 0
  end
  return look and found or call('ZCARD', key)
end

local function stamp(key, index)
  return call('ZRANGE', key, index, index, 'WITHSCORES')[2]
end

local function charge(key, period, cost)
  local first = now
  if foreign[key] then call('DEL', key) end
  if cost > 1 or call('ZADD', key, 'NX', now, now) == 0 then
    local newest = stamp(key, -1)
    if newest and newest + 1 > now then first = newest + 1 end
    for unit = first, first + cost - 1 do call('ZADD', key, unit, unit) end
  end
  local slack = period < 60000000 and period or 60000000
  call('PEXPIRE', key, math.ceil((period + slack) / 1000))
  return first
end

local denied, found, state, args = false, {}, {}, {}
for i = 1, rules do
  local key = KEYS[marks + i]
  local _, flags, period, limit, _, cost, starts, ends = unpack_('<BBdddddd', ARGV[2 + i])
  args[i] = { flags, period, limit, cost }
  if starts > now or (ends > 0 and ends <= now) then
    state[i] = 2
  else
    local n, failure = count(key, period, flags > 1)
    if failure then return failure end
    found[i] = n
    if cost > 0 and n + cost > limit then
      state[i] = 1
      if flags % 2 == 0 then denied = true end
    else
      state[i] = 0
    end
  end
end

local reply = { struct.pack('<BBdd', denied and 1 or 0, 0, now, 0) }
for i = 1, rules do
  local key, n = KEYS[marks + i], found[i]
  local flags, period, limit, cost = args[i][1], args[i][2], args[i][3], args[i][4]
  local remaining, retry, reset, at = 0, 0, 0, now
  if state[i] == 0 and not denied and cost > 0 and flags < 2 then
    at = charge(key, period, cost)
    remaining = limit - n - cost
    reset = at + cost - 1 + period - now
  elseif state[i] < 2 then
    remaining = limit > n and limit - n or 0
    if n > 0 then
      reset = stamp(key, -1) + period - now
      if call('PTTL', key) == -1 then call('PEXPIRE', key, math.ceil(reset / 1000) + 1) end
    end
    if state[i] == 1 then
      retry = cost > limit and -1 or stamp(key, cost - limit - 1) + period - now
    end
  end
  reply[i + 1] = struct.pack('<Bdddd', state[i], remaining, retry, reset, at)
end
return table.concat(reply)
