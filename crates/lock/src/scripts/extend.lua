-- Renews the lease and sets the owner's count, if the owner holds the lock.
-- KEYS: lock. ARGV: owner, lease in ms, count.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('hset', KEYS[1], ARGV[1], ARGV[3])
redis.call('pexpire', KEYS[1], ARGV[2])
return 1
