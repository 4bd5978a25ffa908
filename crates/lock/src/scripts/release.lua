-- Releases the lock if the owner holds it.
-- KEYS: lock. ARGV: owner, channel, whether to publish to the shard.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('del', KEYS[1])
wake(ARGV[2], ARGV[3])
return 1
