-- Acquires the lock for writing if there are no readers or writers; otherwise registers a waiting writer, which keeps
-- out new readers.
-- KEYS: lock, token, readers, writers. ARGV: owner, lease in ms, timeout in ms (0: do not wait).
local now = clock_milliseconds()
drop_dead_readers(KEYS[1], KEYS[3], now)
if redis.call('exists', KEYS[1]) == 1 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  local timeout = tonumber(ARGV[3])
  if timeout > 0 then
    redis.call('zadd', KEYS[4], now + timeout, ARGV[1])
    redis.call('pexpire', KEYS[4], 2 * timeout)
  end
  return {0, redis.call('pttl', KEYS[1])}
end
redis.call('zrem', KEYS[4], ARGV[1])
redis.call('hset', KEYS[1], 'mode', 'write', ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return {1, next_token(KEYS[2])}
