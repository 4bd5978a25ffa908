-- SET NX PX, as specified for Redlock. Repeated requests of the same owner succeed.
-- KEYS: lock, token. ARGV: owner, lease in ms.
if not redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then
  if redis.call('get', KEYS[1]) ~= ARGV[1] then
    return {0, redis.call('pttl', KEYS[1])}
  end
  redis.call('pexpire', KEYS[1], ARGV[2])
end
return {1, next_token(KEYS[2])}
