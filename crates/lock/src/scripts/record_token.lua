-- Raises the token counter to a token granted by another server, so that later tokens are larger.
-- KEYS: lock, token. ARGV: owner, token.
if redis.call('get', KEYS[1]) ~= ARGV[1] then
  return 0
end
keep_token(KEYS[2], math.max(tonumber(redis.call('get', KEYS[2]) or '0'), tonumber(ARGV[2])))
return 1
