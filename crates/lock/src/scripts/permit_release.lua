-- Releases a permit.
-- KEYS: semaphore. ARGV: permit, channel, whether to publish to the shard.
if redis.call('zrem', KEYS[1], ARGV[1]) == 0 then
  return 0
end
wake(ARGV[2], ARGV[3])
return 1
