"""redis-py's Sentinel through ten failovers."""

import time

import redis
from redis.sentinel import Sentinel

MASTER = "mymaster"
FAILOVERS = 10


def eventually(what, attempt):
    """What `attempt` gives once it gives something, for as long as a failover may take on a slow machine."""
    end = time.monotonic() + 60
    while True:
        failure = None
        try:
            value = attempt()
            if value:
                return value
        except redis.exceptions.RedisError as error:
            failure = error
        assert time.monotonic() < end, f"{what}: {failure}"
        time.sleep(0.02)


def hurry(group):
    """Has a master that comes back be noticed in less than the seconds that this takes by default."""
    for port in group.sentinels:
        with redis.Redis(port=port) as client:
            client.execute_command("SENTINEL", "DEBUG", "publish-period", "500")
            client.execute_command("SENTINEL", "SET", MASTER, "down-after-milliseconds", "500")


def is_whole(group, master):
    for port in group.servers:
        if port != master:
            with redis.Redis(port=port) as client:
                info = client.info("replication")
            follows = info["role"] == "slave" and info["master_port"] == master
            if not (follows and info["master_link_status"] == "up"):
                return False
    return True


def successor(sentinel, old):
    port = sentinel.discover_master(MASTER)[1]
    return port if port != old else None


def test_ten_failovers(group):
    hurry(group)
    sentinel = Sentinel([("127.0.0.1", port) for port in group.sentinels], socket_timeout=10)
    master = sentinel.master_for(MASTER, socket_timeout=10, decode_responses=True)
    replica = sentinel.slave_for(MASTER, socket_timeout=10, decode_responses=True)
    assert master.set("round", "none")
    for number in range(FAILOVERS):
        old = sentinel.discover_master(MASTER)[1]
        group.kill(old)
        eventually("the client writes again", lambda: master.set("round", number))
        new = eventually("the sentinels say so", lambda: successor(sentinel, old))
        group.restart(old)
        eventually("the dead one is a replica", lambda: is_whole(group, new))
        assert master.get("round") == str(number), "what was accepted is still there"
        eventually("replicas have it too", lambda: replica.get("round") == str(number))
