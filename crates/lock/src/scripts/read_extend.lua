-- Renews a reader's lease and sets its count.
-- KEYS: lock, token, readers, writers. ARGV: owner, lease in ms, count.
local now = clock_milliseconds()
drop_dead_readers(KEYS[1], KEYS[3], now)
if redis.call('hget', KEYS[1], 'mode') ~= 'read' or redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('hset', KEYS[1], ARGV[1], ARGV[3])
redis.call('zadd', KEYS[3], now + tonumber(ARGV[2]), ARGV[1])
keep_for_the_longest_reader(KEYS[1], KEYS[3], now)
return 1
