-- Removes the owner from the queue, and releases the lock if the owner holds it.
-- KEYS: lock, token, queue, waiters. ARGV: owner, channel, whether to publish to the shard.
local queued = redis.call('zrem', KEYS[3], ARGV[1])
redis.call('zrem', KEYS[4], ARGV[1])
local held = redis.call('hexists', KEYS[1], ARGV[1])
if held == 1 then
  redis.call('del', KEYS[1])
end
if held == 1 or queued == 1 then
  wake(ARGV[2], ARGV[3])
end
return held
