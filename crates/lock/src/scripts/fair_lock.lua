-- Acquires the lock if it is free and no live waiter arrived earlier; otherwise queues the owner.
-- A waiter that has not retried within its timeout is considered dead and skipped.
-- KEYS: lock, token, queue (waiter to position), waiters (waiter to the end of its timeout).
-- ARGV: owner, lease in ms, timeout in ms (0: do not queue).
local now = clock_milliseconds()
local timeout = tonumber(ARGV[3])
local head = redis.call('zrange', KEYS[3], 0, 0)[1]
while head do
  local alive_until = redis.call('zscore', KEYS[4], head)
  if alive_until and tonumber(alive_until) >= now then
    break
  end
  redis.call('zrem', KEYS[3], head)
  redis.call('zrem', KEYS[4], head)
  head = redis.call('zrange', KEYS[3], 0, 0)[1]
end
local free = redis.call('exists', KEYS[1]) == 0
local mine = redis.call('hexists', KEYS[1], ARGV[1]) == 1
if mine or (free and (not head or head == ARGV[1])) then
  redis.call('zrem', KEYS[3], ARGV[1])
  redis.call('zrem', KEYS[4], ARGV[1])
  redis.call('hset', KEYS[1], ARGV[1], 1)
  redis.call('pexpire', KEYS[1], ARGV[2])
  return {1, next_token(KEYS[2])}
end
if timeout > 0 then
  if not redis.call('zscore', KEYS[3], ARGV[1]) then
    local last = redis.call('zrange', KEYS[3], -1, -1, 'withscores')[2]
    redis.call('zadd', KEYS[3], tonumber(last or '0') + 1, ARGV[1])
  end
  redis.call('zadd', KEYS[4], now + timeout, ARGV[1])
  redis.call('pexpire', KEYS[3], 2 * timeout)
  redis.call('pexpire', KEYS[4], 2 * timeout)
end
if free then
  return {0, math.max(tonumber(redis.call('zscore', KEYS[4], head)) - now, 1)}
end
return {0, redis.call('pttl', KEYS[1])}
