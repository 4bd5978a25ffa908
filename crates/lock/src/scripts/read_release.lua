-- Removes a reader. After the last one the lock is free.
-- KEYS: lock, token, readers, writers. ARGV: owner, channel, whether to publish to the shard.
local now = clock_milliseconds()
drop_dead_readers(KEYS[1], KEYS[3], now)
if redis.call('zrem', KEYS[3], ARGV[1]) == 0 then
  return 0
end
redis.call('hdel', KEYS[1], ARGV[1])
if redis.call('zcard', KEYS[3]) > 0 then
  keep_for_the_longest_reader(KEYS[1], KEYS[3], now)
  return 1
end
redis.call('del', KEYS[1])
wake(ARGV[2], ARGV[3])
return 1
