-- Purpose: count one identity's offences of one flush, once, in a cluster, where no key tells of a flush for all slots.
-- KEYS: 1 the identity's offences (a hash).
-- ARGV: 1 token of the process; 2 id of its flush; 3 time to live in seconds; then each field and its count.
-- Returns: 1 when they were counted, 0 when that flush has been counted before.
local own = '!' .. ARGV[1]

if redis.call('HGET', KEYS[1], own) == ARGV[2] then return 0 end
for i = 4, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], own, ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
