-- Acquires the lock in Redisson's format: a hash of owner to count, with the lease as its expiry.
-- Repeated requests of the same owner succeed, because the first reply may have been lost.
-- KEYS: lock, token. ARGV: owner, lease in ms.
if redis.call('exists', KEYS[1]) == 1 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return {0, redis.call('pttl', KEYS[1])}
end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return {1, next_token(KEYS[2])}
