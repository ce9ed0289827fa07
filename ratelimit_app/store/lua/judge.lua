-- Purpose: look at all rules, then at the marks where there may be one, then charge all rules or none.
-- KEYS, ARGV, Returns: the end of the script that decide.lua begins.
local rules, seen, denied = #KEYS - marks, 0, false
local state, form, n, room, texts, dirty = {}, {}, {}, {}, {}, {}

local function looks(flags) return flags % 4 > 1 end

local function read_state(i, key, code, period, limit, burst)
  local value, v, units = here > 0 and attempt('GET', key), nil, 0
  if type(value) == 'string' then
    seen, v = seen + 1, decode(value)
    if v and min(v[1], 3) ~= min(code, 3) then units = used(v, period, limit) end
  elseif value then
    local kind = call('TYPE', key).ok
    if kind == 'string' then call('GET', key) end -- fails again, by itself, with what it was
    seen = seen + 1
    if kind == 'zset' or kind == 'list' then
      form[i], units = read_log(key, period, limit, max(limit, burst), true)
    end
  end
  texts[i], room[i], dirty[i] = current(v, units, code, period, limit, burst)
end

local at = 2
for i = 1, rules do
  local key = KEYS[marks + i]
  local code, flags, period, limit, burst, cost, _, starts, ends, after = unpack_(RULE, spec, at)
  at = after
  if starts > now or (ends > 0 and ends <= now) then
    state[i] = 2
  else
    if code > 0 then
      read_state(i, key, code, period, limit, burst)
    elseif here > 0 then
      local known
      form[i], n[i], known = read_log(key, period, limit, max(limit, burst), looks(flags))
      if known then seen = seen + 1 end
      room[i] = limit - n[i]
    else
      n[i], room[i] = 0, limit
    end
    state[i] = cost > 0 and cost > room[i] and 1 or 0
    if state[i] == 1 and flags % 2 == 0 then denied = true end
  end
end

if marks > 0 and here > seen then
  local reply = banned()
  if reply then return reply end
end

-- What another rule left in the key is brought into this one's form by whoever asks in earnest, denied or not: else
-- each denial would count anew from now. A life that is too short for what is counted is made longer.
local function report_log(i, key, period, limit, burst, cost, look)
  local large, left = max(limit, burst) > 128, n[i]
  if form[i] == 'carried' and not look then
    form[i] = settle(key, form[i], left, large)
    call('PEXPIRE', key, life(left - 1 + period, period))
  end
  local reset = left > 0 and stamp(key, form[i], left, -1) + period - now or 0
  local retry = 0
  if state[i] == 1 then
    retry = cost > limit and -1 or stamp(key, form[i], left, cost - limit - 1) + period - now
  end
  return retry, reset
end

local function report_state(i, key, period, limit, burst, cost, look)
  local v, drain, fits = texts[i], nil, limit
  if v[1] > 2 then
    drain = select(2, scale(period, limit))
    fits = limit > 0 and burst or 0
  end
  local reset, retry = reset_of(v, period, drain), 0
  if state[i] == 1 then
    retry = cost > fits and -1 or retry_of(v, v[1] == 2 and cost - room[i] or cost, period, limit, burst)
  end
  if dirty[i] and not look then write_state(key, v, reset, period) end
  return retry, reset
end

local function charge(i, key, code, period, limit, burst, cost, lease)
  if code == 0 then
    local units = max(cost, min(lease, room[i]))
    local ahead = units > cost and floor(period / 20) or 0
    local first = charge_log(key, form[i], n[i], period, max(limit, burst) > 128, units, ahead)
    return first, units, room[i] - units, first + units - 1 + period - now
  end
  local v = texts[i]
  local drain
  if code > 2 then drain = select(2, scale(period, limit)) end
  local first, units, left = charge_state(v, room[i], period, limit, burst, cost, lease)
  local reset = reset_of(v, period, drain)
  write_state(key, v, reset, period)
  return first, units, left, reset
end

local reply = { pack('<BBdd', denied and 1 or 0, 0, now, 0) }
at = 2
for i = 1, rules do
  local key = KEYS[marks + i]
  local code, flags, period, limit, burst, cost, lease, _, _, after = unpack_(RULE, spec, at)
  at = after
  local remaining, retry, reset, first, units = 0, 0, 0, now, 0
  if state[i] == 0 and not denied and cost > 0 and not looks(flags) then
    first, units, remaining, reset = charge(i, key, code, period, limit, burst, cost, flags > 3 and lease or 0)
    retry = flags > 3 and units or 0
  elseif state[i] < 2 then
    local report = code == 0 and report_log or report_state
    remaining = max(room[i], 0)
    retry, reset = report(i, key, period, limit, burst, cost, looks(flags))
    if reset > 0 and not looks(flags) and call('PTTL', key) * 1000 < reset then
      call('PEXPIRE', key, life(reset, period))
    end
  end
  reply[i + 1] = pack('<Bdddd', state[i], remaining, retry, reset, first)
end
return table.concat(reply)
