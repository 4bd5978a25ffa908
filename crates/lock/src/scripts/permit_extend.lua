-- Renews the lease of a permit, unless it has expired.
-- KEYS: semaphore. ARGV: permit, lease in ms.
local now = clock_milliseconds()
redis.call('zremrangebyscore', KEYS[1], '-inf', now)
if not redis.call('zscore', KEYS[1], ARGV[1]) then
  return 0
end
redis.call('zadd', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
local longest = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
redis.call('pexpire', KEYS[1], math.max(tonumber(longest) - now, 1))
return 1
