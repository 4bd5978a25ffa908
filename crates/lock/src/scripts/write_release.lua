-- Removes a waiting writer, or releases the lock of a writer.
-- KEYS: lock, token, readers, writers. ARGV: owner, channel, whether to publish to the shard.
local waited = redis.call('zrem', KEYS[4], ARGV[1])
local held = redis.call('hexists', KEYS[1], ARGV[1])
if held == 1 then
  redis.call('del', KEYS[1])
end
if held == 1 or waited == 1 then
  wake(ARGV[2], ARGV[3])
end
return held
