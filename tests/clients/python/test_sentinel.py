"""redis-py's Sentinel through ten failovers."""

import redis
from redis.sentinel import Sentinel

from waiting import eventually

MASTER = "mymaster"
FAILOVERS = 10


def successor(sentinel, old):
    port = sentinel.discover_master(MASTER)[1]
    return port if port != old else None


def test_sentinel_client_survives_ten_failovers(group):
    sentinel = Sentinel(group.sentinels, socket_timeout=10)
    master = sentinel.master_for(MASTER, socket_timeout=10, decode_responses=True)
    replica = sentinel.slave_for(MASTER, socket_timeout=10, decode_responses=True)
    assert master.set("round", "none")
    for number in range(FAILOVERS):
        old = sentinel.discover_master(MASTER)[1]
        group.kill(group.number(old))
        eventually("the client writes again", lambda: master.set("round", number))
        eventually("the sentinels say so", lambda: successor(sentinel, old))
        group.restart(group.number(old))
        group.wait_until_whole()
        assert master.get("round") == str(number), "what was accepted is still there"
        eventually("replicas have it too", lambda: replica.get("round") == str(number))
