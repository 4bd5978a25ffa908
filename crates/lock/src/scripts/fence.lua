-- Returns the next fencing token: larger than the last one, and at least the server's clock in microseconds.
-- So tokens keep growing if a failover loses the last one, and the counter may expire.
-- Microseconds since 1970 stay below 2^53 until 2255, so doubles represent them exactly.
local function clock_microseconds()
  local time = redis.call('time')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function keep_token(key, token)
  redis.call('set', key, string.format('%.0f', token), 'px', 86400000)
end

local function next_token(key)
  local token = tonumber(redis.call('get', key) or '0') + 1
  token = math.max(token, clock_microseconds())
  keep_token(key, token)
  return token
end

local function clock_milliseconds()
  return math.floor(clock_microseconds() / 1000)
end

-- Wakes waiters. In a cluster, Redisson may subscribe to a sharded channel.
local function wake(channel, sharded)
  redis.call('publish', channel, '0')
  if sharded == '1' then
    redis.pcall('spublish', channel, '0')
  end
end
