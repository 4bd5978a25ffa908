-- Returns the remaining count of a latch. KEYS: latch.
return tonumber(redis.call('get', KEYS[1]) or '0')
