-- Removes readers whose leases have ended; each reader has its own lease.
local function drop_dead_readers(lock, readers, now)
  local dead = redis.call('zrangebyscore', readers, '-inf', now)
  for _, reader in ipairs(dead) do
    redis.call('hdel', lock, reader)
    redis.call('zrem', readers, reader)
  end
  if #dead > 0 and redis.call('zcard', readers) == 0 and redis.call('hget', lock, 'mode') == 'read' then
    redis.call('del', lock)
  end
end

local function keep_for_the_longest_reader(lock, readers, now)
  local longest = redis.call('zrange', readers, -1, -1, 'withscores')[2]
  local left = math.max(tonumber(longest) - now, 1)
  redis.call('pexpire', lock, left)
  redis.call('pexpire', readers, left)
end
