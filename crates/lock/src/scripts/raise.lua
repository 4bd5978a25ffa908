-- Makes later tokens larger than this one, which another of several servers gave.
-- KEYS: lock, token. ARGV: owner, token.
if redis.call('get', KEYS[1]) ~= ARGV[1] then
  return 0
end
keep_token(KEYS[2], math.max(tonumber(redis.call('get', KEYS[2]) or '0'), tonumber(ARGV[2])))
return 1
