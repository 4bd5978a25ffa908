-- KEYS: lock. ARGV: owner, channel, whether to publish to the shard.
if redis.call('get', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('del', KEYS[1])
wake(ARGV[2], ARGV[3])
return 1
