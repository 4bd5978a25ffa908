-- Counts down once per event id, even if the request is repeated. The last event opens the latch.
-- KEYS: latch, counted (event ids seen). ARGV: event id, channel, whether to publish to the shard.
if redis.call('exists', KEYS[1]) == 0 or redis.call('sadd', KEYS[2], ARGV[1]) == 0 then
  return tonumber(redis.call('get', KEYS[1]) or '0')
end
local left = redis.call('decr', KEYS[1])
if left > 0 then
  return left
end
redis.call('del', KEYS[1], KEYS[2])
wake(ARGV[2], ARGV[3])
return 0
