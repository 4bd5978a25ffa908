-- Grants a permit if fewer than the limit are held. Expired permits are free.
-- KEYS: semaphore (permit to the end of its lease), token. ARGV: permit, lease in ms, limit.
local now = clock_milliseconds()
redis.call('zremrangebyscore', KEYS[1], '-inf', now)
if not redis.call('zscore', KEYS[1], ARGV[1]) and redis.call('zcard', KEYS[1]) >= tonumber(ARGV[3]) then
  local first = redis.call('zrange', KEYS[1], 0, 0, 'withscores')[2]
  return {0, math.max(tonumber(first) - now, 1)}
end
redis.call('zadd', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
local longest = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
redis.call('pexpire', KEYS[1], math.max(tonumber(longest) - now, 1))
return {1, next_token(KEYS[2])}
