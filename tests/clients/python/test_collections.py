"""redis-py's collections, streams and blocking commands in a cluster, while the master of their keys is killed."""

import contextlib
import threading
import time

import pytest
import redis

from test_cluster import connect, key_for_every_slot, retry
from waiting import wait_until_replicated


@pytest.fixture(name="key")
def key_of_first_master():
    return key_for_every_slot()[0]


def eventually(what, condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def fill(client, key):
    """Writes one collection of every type, all in the slot of `key`."""
    assert client.rpush(f"{{{key}}}list", *range(200)) == 200
    assert client.hset(f"{{{key}}}hash", mapping={f"f{n}": n for n in range(200)}) == 200
    assert client.sadd(f"{{{key}}}set", *range(600)) == 600
    assert client.zadd(f"{{{key}}}zset", {f"m{n}": n / 2 for n in range(200)}) == 200
    for number in range(20):
        assert client.xadd(f"{{{key}}}stream", {"n": number}, id=f"{number + 1}-0") == f"{number + 1}-0"


def check(client, key):
    """Checks that the collections of `fill` are complete, with the commands of each type."""
    name = "{{{}}}{}".format
    assert retry(client.lrange, name(key, "list"), 0, -1) == [str(n) for n in range(200)]
    assert client.lpos(name(key, "list"), "150") == 150
    assert client.hgetall(name(key, "hash")) == {f"f{n}": str(n) for n in range(200)}
    assert dict(client.hscan_iter(name(key, "hash"), count=50)) == {f"f{n}": str(n) for n in range(200)}
    assert set(client.sscan_iter(name(key, "set"))) == {str(n) for n in range(600)}
    assert client.sinter(name(key, "set"), name(key, "set")) == {str(n) for n in range(600)}
    pairs = client.zrange(name(key, "zset"), 0, 1, withscores=True)
    assert [tuple(pair) for pair in pairs] == [("m0", 0.0), ("m1", 0.5)]
    assert client.zrevrank(name(key, "zset"), "m199") == 0
    assert client.zrangebyscore(name(key, "zset"), "(1", 2) == ["m3", "m4"]
    assert len(client.xrange(name(key, "stream"))) == 20
    assert client.xinfo_stream(name(key, "stream"))["last-generated-id"] == "20-0"


@pytest.mark.parametrize("protocol", [2, 3])
def test_blocked_clients_are_served(cluster, key, protocol):
    with contextlib.closing(connect(cluster, protocol)) as client, contextlib.closing(connect(cluster)) as other:
        table = [
            (lambda: client.blpop([key], 30), lambda: other.rpush(key, "v"), [key, "v"]),
            (lambda: client.blmove(key, f"{{{key}}}2", 30, "LEFT", "RIGHT"), lambda: other.rpush(key, "v"), "v"),
            (lambda: client.blmpop(30, 1, key, direction="LEFT"), lambda: other.rpush(key, "v"), [key, ["v"]]),
            (lambda: client.bzpopmin([key], 30), lambda: other.zadd(key, {"m": 1.5}), [key, "m", 1.5]),
        ]
        for wait, give, expected in table:
            told = []
            waiting = threading.Thread(target=lambda wait=wait, told=told: told.append(wait()))
            waiting.start()
            master = redis.Redis(port=cluster.ports[0])
            eventually("it waits", lambda master=master: master.info("clients")["blocked_clients"] == 1)
            master.close()
            assert give() == 1
            waiting.join(30)
            assert list(told[0]) == expected if isinstance(expected, list) else told[0] == expected
        assert client.blpop([key], 0.05) is None


def test_consumers_continue_on_new_master(cluster):
    # Not the first master: redis-py queries only that one for the keys of XREADGROUP, and fails if it is dead.
    key, port = key_for_every_slot()[16383], cluster.ports[2]
    client = connect(cluster, protocol=3)
    fill(client, key)
    jobs, events = f"{{{key}}}jobs", f"{{{key}}}events"
    assert client.xgroup_create(events, "group", mkstream=True)
    assert client.rpush(jobs, "before") == 1
    client.xadd(events, {"event": "before"})
    popped, read = [], []
    over = threading.Event()

    def pop(other):
        while not over.is_set():
            item = retry(other.blpop, [jobs], 1)
            popped.extend([item[1]] if item else [])

    def read_group(other):
        while not over.is_set():
            reply = retry(other.xreadgroup, "group", "me", {events: ">"}, None, 1000)
            streams = reply.values() if isinstance(reply, dict) else [entries for _, entries in reply or []]
            for entries in streams:
                for entry in entries[0] if entries and isinstance(entries[0], list) else entries:
                    read.append(entry[1]["event"])
                    retry(other.xack, events, "group", entry[0])

    consumers = [threading.Thread(target=consume, args=(connect(cluster),)) for consume in (pop, read_group)]
    for consumer in consumers:
        consumer.start()
    try:
        eventually("both consume", lambda: "before" in popped and "before" in read)
        wait_until_replicated(port)
        cluster.kill(2)
        retry(client.rpush, jobs, "after")
        retry(client.xadd, events, {"event": "after"})
        eventually("both go on", lambda: "after" in popped and "after" in read)
        check(client, key)
    finally:
        over.set()
        for consumer in consumers:
            consumer.join(60)
    assert not any(consumer.is_alive() for consumer in consumers)
