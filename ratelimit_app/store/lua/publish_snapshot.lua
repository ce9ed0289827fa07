-- Purpose: put a snapshot into Redis, unless it has a newer one of the same epoch.
-- KEYS: 1 the snapshot (a hash), 2 the changes of the networks (a list).
-- ARGV: 1 epoch; 2 counter; 3 body; 4 counter of the networks; 5 time to live in milliseconds.
-- Returns: 1 when it was taken, 0 when Redis has as great a counter already.
local epoch, counter = ARGV[1], tonumber(ARGV[2])

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end

local function held(field)
  local version = redis.call('HGET', KEYS[1], field) or ''
  local its_epoch, its_counter = string.match(version, '^(.*):(%d+)$')
  return its_epoch, tonumber(its_counter)
end

local its_epoch, its_counter = held('version')
if its_epoch == epoch and its_counter >= counter then return 0 end
redis.call('HSET', KEYS[1], 'version', epoch .. ':' .. ARGV[2], 'body', ARGV[3])

-- Readers of another epoch read all networks anew, so the list of changes begins anew.
if held('networks') ~= epoch then
  redis.call('HSET', KEYS[1], 'networks', epoch .. ':' .. ARGV[4])
  redis.call('DEL', KEYS[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1
