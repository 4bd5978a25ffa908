-- Creates a latch unless it exists. KEYS: latch, counted. ARGV: count.
if redis.call('exists', KEYS[1]) == 1 then
  return 0
end
redis.call('del', KEYS[2])
redis.call('set', KEYS[1], ARGV[1])
return 1
