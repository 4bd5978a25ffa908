-- Admits a reader, unless a writer holds the lock or waits.
-- KEYS: lock, token, readers (reader to the end of its lease), writers (waiting writer to the end of its timeout).
-- ARGV: owner, lease in ms.
local now = clock_milliseconds()
drop_dead_readers(KEYS[1], KEYS[3], now)
redis.call('zremrangebyscore', KEYS[4], '-inf', now)
local held = redis.call('exists', KEYS[1]) == 1
if held and redis.call('hget', KEYS[1], 'mode') ~= 'read' then
  return {0, redis.call('pttl', KEYS[1])}
end
local mine = redis.call('hexists', KEYS[1], ARGV[1]) == 1
if not mine and redis.call('zcard', KEYS[4]) > 0 then
  local first = redis.call('zrange', KEYS[4], 0, 0, 'withscores')[2]
  return {0, math.max(tonumber(first) - now, 1)}
end
redis.call('hset', KEYS[1], 'mode', 'read', ARGV[1], 1)
redis.call('zadd', KEYS[3], now + tonumber(ARGV[2]), ARGV[1])
keep_for_the_longest_reader(KEYS[1], KEYS[3], now)
return {1, next_token(KEYS[2])}
