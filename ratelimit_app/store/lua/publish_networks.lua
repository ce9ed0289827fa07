-- Purpose: apply one difference to the networks in Redis, unless they are newer in the same epoch.
-- KEYS: 1 the snapshot (a hash), 2 the networks (a hash), 3 their changes (a list).
-- ARGV: 1 epoch; 2 counter; 3 the change as JSON; 4 time to live in milliseconds; 5 most changes that are kept;
--       6 number of networks to set; then each network and its end in microseconds; then the networks to delete.
-- Returns: 1 when it was applied, 0 when Redis has as great a counter already.
local epoch, counter, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[4]

for i, kind in ipairs({ 'hash', 'hash', 'list' }) do
  if redis.call('TYPE', KEYS[i]).ok ~= kind then redis.call('DEL', KEYS[i]) end
end

local version = redis.call('HGET', KEYS[1], 'networks') or ''
local its_epoch, its_counter = string.match(version, '^(.*):(%d+)$')
if its_epoch == epoch and tonumber(its_counter) >= counter then return 0 end

local last = 6 + 2 * tonumber(ARGV[6])
for i = 7, last, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
for i = last + 1, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end

if its_epoch ~= epoch then redis.call('DEL', KEYS[3]) end
redis.call('RPUSH', KEYS[3], ARGV[3])
redis.call('LTRIM', KEYS[3], -tonumber(ARGV[5]), -1)
redis.call('HSET', KEYS[1], 'networks', epoch .. ':' .. ARGV[2])
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ttl) end
return 1
