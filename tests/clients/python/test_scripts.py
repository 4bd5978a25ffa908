"""redis-py against one server: scripts, functions, and locks that are made of scripts."""

import threading
import time

import pytest
import redis


def test_flushed_script_is_loaded_again(client):
    double = client.register_script("return redis.call('incrby', KEYS[1], ARGV[1] * 2)")
    assert double(keys=["n"], args=[2]) == 4
    client.script_flush()
    assert double(keys=["n"], args=[1]) == 6
    pipeline = client.pipeline()
    double(keys=["n"], args=[3], client=pipeline)
    assert pipeline.execute() == [12]
    assert client.script_exists(double.sha) == [True]


def test_functions_survive_a_copy_to_another_server(client):
    code = (
        "#!lua name=counters\n"
        "redis.register_function('add', function(keys, args) return redis.call('incrby', keys[1], args[1]) end)\n"
        "redis.register_function{function_name='show', callback=function(keys) return redis.call('get', keys[1]) end,"
        " flags={'no-writes'}}"
    )
    assert client.function_load(code) == "counters"
    assert client.fcall("add", 1, "n", 5) == 5
    assert client.fcall_ro("show", 1, "n") == "5"
    with pytest.raises(redis.ResponseError):
        client.fcall_ro("add", 1, "n", 5)
    raw = redis.Redis(port=client.connection_pool.connection_kwargs["port"])
    dump = raw.function_dump()
    raw.function_flush()
    assert raw.function_list() == []
    raw.function_restore(dump)
    assert client.fcall("add", 1, "n", 5) == 10


def test_lock_has_one_holder(client):
    first = client.lock("resource", timeout=10)
    second = client.lock("resource", timeout=10, blocking=False)
    assert first.acquire()
    assert not second.acquire()
    assert first.owned() and not second.owned()
    assert first.extend(5) and first.reacquire()
    first.release()
    assert second.acquire()
    second.release()
    with pytest.raises(redis.exceptions.LockError):
        second.release()


def test_expired_lock_is_free(client):
    lock = client.lock("resource", timeout=0.1)
    assert lock.acquire()
    deadline = time.monotonic() + 10
    while client.exists("resource"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.release()


def test_lock_protects_counter_of_many_threads(server):
    def work():
        with redis.Redis(port=server) as client:
            for _ in range(50):
                with client.lock("guard", timeout=30, sleep=0.001):
                    count = int(client.get("count") or 0)
                    client.set("count", count + 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with redis.Redis(port=server) as client:
        assert client.get("count") == b"200"


# A reentrant lock as a hash: its fields are owners, their values the number of acquisitions. Releases are published
# on a channel for waiting clients.
ACQUIRE = """
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
"""
RELEASE = """
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then
  return nil
end
local holds = redis.call('hincrby', KEYS[1], ARGV[3], -1)
if holds > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
"""


def test_a_reentrant_lock(client):
    acquire, release = client.register_script(ACQUIRE), client.register_script(RELEASE)
    keys = ["{lock}", "{lock}:channel"]
    with client.pubsub(ignore_subscribe_messages=True) as waiting:
        waiting.subscribe(keys[1])
        assert acquire(keys=keys[:1], args=[30000, "a"]) is None
        assert acquire(keys=keys[:1], args=[30000, "a"]) is None
        assert 0 < acquire(keys=keys[:1], args=[30000, "b"]) <= 30000
        assert release(keys=keys, args=["free", 30000, "b"]) is None
        assert release(keys=keys, args=["free", 30000, "a"]) == 0
        assert release(keys=keys, args=["free", 30000, "a"]) == 1
        deadline = time.monotonic() + 10
        message = None
        while message is None:
            assert time.monotonic() < deadline
            message = waiting.get_message(timeout=1)
        assert message["data"] == "free"
        assert acquire(keys=keys[:1], args=[30000, "b"]) is None


# A fair lock: a list contains the waiting clients, a sorted set the times when their entries expire.
ACQUIRE_IN_TURN = """
while true do
  local first = redis.call('lindex', KEYS[2], 0)
  if first == false then break end
  local until_when = tonumber(redis.call('zscore', KEYS[3], first))
  if until_when > tonumber(ARGV[4]) then break end
  redis.call('zrem', KEYS[3], first)
  redis.call('lpop', KEYS[2])
end
local free = redis.call('exists', KEYS[1]) == 0
local first = redis.call('lindex', KEYS[2], 0)
if free and (first == false or first == ARGV[2]) then
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], ARGV[2])
  for _, waiting in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
    redis.call('zincrby', KEYS[3], -tonumber(ARGV[3]), waiting)
  end
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if redis.call('zadd', KEYS[3], 'NX', tonumber(ARGV[4]) + tonumber(ARGV[3]), ARGV[2]) == 1 then
  redis.call('rpush', KEYS[2], ARGV[2])
end
return redis.call('pttl', KEYS[1])
"""


def test_fair_lock_is_granted_in_order(client):
    acquire = client.register_script(ACQUIRE_IN_TURN)
    keys = ["{fair}", "{fair}:queue", "{fair}:times"]

    def attempt(name, now=1000):
        return acquire(keys=keys, args=[30000, name, 5000, now])

    assert attempt("a") is None
    assert attempt("b") > 0 and attempt("c") > 0 and attempt("b") > 0
    client.delete(keys[0])
    assert attempt("c") == -2, "b stands before it"
    assert attempt("b") is None
    client.delete(keys[0])
    assert attempt("d", now=900) == -2, "c stands before it"
    # The entry of c has expired.
    assert attempt("d", now=1001) is None
    assert client.lrange(keys[1], 0, -1) == []


# A read-write lock: the hash contains the mode and the owners.
READ = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then redis.call('hset', KEYS[1], 'mode', 'read') mode = 'read' end
if mode == 'read' or redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 1 then
  local held = redis.call('hincrby', KEYS[1], ARGV[2], 1)
  local key = KEYS[2] .. ':' .. held
  redis.call('set', key, 1)
  redis.call('pexpire', key, ARGV[1])
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], math.max(left, ARGV[1]))
  return nil
end
return redis.call('pttl', KEYS[1])
"""
WRITE = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
  redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2] .. ':write', 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
"""


def test_read_write_lock(client):
    read, write = client.register_script(READ), client.register_script(WRITE)
    keys = ["{rw}", "{rw}:timeout"]
    # The second key is only a prefix: the script accesses keys that it did not declare.
    assert read(keys=keys, args=[30000, "a"]) is None
    assert read(keys=keys, args=[30000, "b"]) is None
    assert write(keys=keys[:1], args=[30000, "c"]) > 0
    client.delete(keys[0])
    assert write(keys=keys[:1], args=[30000, "c"]) is None
    assert read(keys=keys, args=[30000, "a"]) > 0
    assert read(keys=keys, args=[30000, "c"]) is None
    assert client.hget(keys[0], "mode") == "write"
