-- Purpose: look at every blacklist mark and rule of one request, then charge all rules or none.
-- This file reads the call, and decides by itself the most common one: one rule with a small log. Then follow, as
-- one script: states.lua, logs.lua, judge.lua.
-- KEYS: the marks, then one key for each rule: each its own.
-- ARGV: 1 struct of '<B' number of marks, then for each rule '<BBddddddd' of algorithm (0 sliding_window,
--       1 fixed_window, 2 sliding_counter, 3 token_bucket, 4 leaky_bucket, 5 gcra), flags (1 shadow, 2 look,
--       4 lease), period us, limit, burst, cost, lease units, starts us, ends us (0: no bound);
--       2 now in microseconds (tests alone send it; else the server's clock). Of a window, the limit is what this
--       rule may use, the burst the whole of it where it is shared; of a meter, the burst is what this rule may use.
-- Returns: struct '<BBdd' of verdict (0 passed, 1 limited, 2 blocked), number of the mark, now us, ban's end us
--       (0: never); unless blocked, then for each rule '<Bdddd' of state (0 passed, 1 over, 2 asleep), remaining,
--       retry us (-1: never; with the lease flag, when charged: the units granted), reset us, at us (first stamp
--       charged, else now).
local call, attempt, pack, unpack_ = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local spec, now = ARGV[1], ARGV[2]
if now then
  now = now + 0
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local marks = string.byte(spec)
local here = marks == 0 and 1 or call('EXISTS', unpack(KEYS))

-- The common call: no function is made before it, since each costs as much as a step of it.
local several = #spec > 59
if #spec == 59 then
  local _, code, flags, period, limit, whole, cost, _, starts, ends = unpack_('<BBBddddddd', spec)
  local key, n, gone = KEYS[#KEYS], 0, 0
  several = limit > 128 or whole > 128
  if code == 0 and flags < 2 and limit <= 128 and whole <= 128 and starts == 0 and ends == 0 then
    if here > 0 then
      gone = attempt('ZREMRANGEBYSCORE', key, '-inf', now - period)
      n = type(gone) == 'number' and call('ZCARD', key)
    end
    -- Where more exists than the log, it is a mark: that, and what is no ZSet, is for the general way.
    if not n or (marks > 0 and here > (n + gone > 0 and 1 or 0)) then cost = 0 end
    local slack = period <= 60000000 and period or 60000000 + floor(period / 20)
    if cost > 0 and n + cost <= limit then
      local first = now
      if cost > 1 or call('ZADD', key, 'NX', now, now) == 0 then
        local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2]
        if newest and newest + 1 > now then first = newest + 1 end
        for stamp = first, first + cost - 1 do call('ZADD', key, stamp, stamp) end
      end
      local reset = first + cost - 1 + period - now
      call('PEXPIRE', key, ceil((reset + slack) / 1000))
      return pack('<BBddBdddd', 0, 0, now, 0, 0, limit - n - cost, 0, reset, first)
    elseif cost > 0 and n > 0 then
      local reset, retry = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + period - now, -1
      if cost <= limit then
        -- Numbers become text at a price: the oldest, which is nearly always meant, has its text here.
        local index = n + cost - limit - 1
        if index == 0 then index = '0' end
        retry = call('ZRANGE', key, index, index, 'WITHSCORES')[2] + period - now
      end
      if call('PTTL', key) * 1000 < reset then call('PEXPIRE', key, ceil((reset + slack) / 1000)) end
      return pack('<BBddBdddd', 1 - flags, 0, now, 0, 1, max(limit - n, 0), retry, reset, now)
    end
  end
end

-- Several such rules that all pass, one unit each, and long logs, while no more than one unit has expired. Whatever is
-- otherwise is left as it was, but for what had expired, and begins anew in the general way.
local RULE = '<BBddddddd'
if several then
  local at, seen, counts, sizes, periods, wholes = 2, 0, {}, {}, {}, {}
  for i = 1, #KEYS - marks do
    local code, flags, period, limit, whole, cost, _, starts, ends, after = unpack_(RULE, spec, at)
    if code > 0 or flags > 0 or cost ~= 1 or starts > 0 or ends > 0 then counts = nil break end
    local key, n, gone = KEYS[marks + i], 0, 0
    if limit > whole then whole = limit end
    if here > 0 then
      if whole <= 128 then
        gone = attempt('ZREMRANGEBYSCORE', key, '-inf', now - period)
        n = type(gone) == 'number' and call('ZCARD', key)
      else
        n = attempt('LLEN', key)
        if type(n) ~= 'number' then
          n = nil
        elseif n > 0 then
          local oldest = tonumber(call('LINDEX', key, '0'))
          if not oldest then
            n = nil
          elseif oldest <= now - period then
            local second = n > 1 and tonumber(call('LINDEX', key, '1'))
            if second == nil or (second and second <= now - period) then
              n = nil
            else
              call('LTRIM', key, '1', '-1')
              n, gone = n - 1, 1
            end
          end
        end
      end
    end
    if not n or n >= limit then counts = nil break end
    if n + gone > 0 then seen = seen + 1 end
    counts[i], sizes[i], periods[i], wholes[i] = n, limit, period, whole
    at = after
  end
  if counts and (marks == 0 or here == seen) then
    local reply, text = pack('<BBdd', 0, 0, now, 0), string.format('%.0f', now)
    for i = 1, #counts do
      local key, n, period, first = KEYS[marks + i], counts[i], periods[i], now
      if wholes[i] > 128 then
        local newest = n > 0 and (tonumber(call('LINDEX', key, '-1')) or 0) + 1
        if newest and newest > now then first = newest end
        call('RPUSH', key, first)
      elseif call('ZADD', key, 'NX', text, text) == 0 then
        local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 1
        if newest > now then first = newest end
        call('ZADD', key, first, first)
      end
      local reset = first + period - now
      local slack = period <= 60000000 and period or 60000000 + floor(period / 20)
      call('PEXPIRE', key, ceil((reset + slack) / 1000))
      reply = reply .. pack('<Bdddd', 0, sizes[i] - n - 1, 0, reset, first)
    end
    return reply
  end
end

local function banned()
  local longest, at
  for i = 1, marks do
    local value = attempt('GET', KEYS[i])
    local expires = type(value) == 'string' and tonumber(value)
    if expires == 0 then expires = math.huge end
    if expires and expires > now and (not longest or expires > longest) then longest, at = expires, i end
  end
  return longest and pack('<BBdd', 2, at, now, longest == math.huge and 0 or longest)
end

-- Milliseconds that a key lives which is empty after so many microseconds. The slack is for a clock that steps back,
-- and for permits that an earlier call charged ahead.
local function life(us, period)
  local slack = period <= 60000000 and period or 60000000 + floor(period / 20)
  return min(ceil((us + slack) / 1000), 1e15)
end
