"""redis-py's cluster client over all slots, while a master is killed and later comes back."""

import threading
import time

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot

from waiting import wait_until_replicated

SLOTS = 16384


def key_for_every_slot():
    keys = [None] * SLOTS
    missing = SLOTS
    number = 0
    while missing:
        key = f"key:{number}"
        slot = key_slot(key.encode())
        if keys[slot] is None:
            keys[slot] = key
            missing -= 1
        number += 1
    return keys


def connect(cluster, protocol=2):
    return RedisCluster(
        startup_nodes=[ClusterNode(*address) for address in cluster.addresses],
        protocol=protocol,
        decode_responses=True,
        socket_timeout=10,
    )


def retry(action, *arguments):
    """Retries until a failover must have completed, even on a slow machine."""
    end = time.monotonic() + 60
    while True:
        try:
            return action(*arguments)
        except redis.exceptions.RedisError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def write_all(client, keys, value):
    for key in keys:
        assert retry(client.set, key, value)


def read_all(client, keys, value):
    for key in keys:
        assert retry(client.get, key) == value, key


def test_every_slot_works_after_master_dies(cluster):
    keys = key_for_every_slot()
    client = connect(cluster)
    write_all(client, keys, "first")
    for index in range(3):
        # Keys that are on the replicas when the master dies must not be lost.
        wait_until_replicated(cluster.ports[index])

    # Another client writes all the time.
    over = threading.Event()
    rounds = 0
    failures = []

    def keep_writing():
        nonlocal rounds
        try:
            other = connect(cluster)
            while not over.is_set():
                write_all(other, keys[::64], f"round {rounds}")
                rounds += 1
        except Exception as error:  # the error is checked below
            failures.append(error)

    writer = threading.Thread(target=keep_writing)
    untouched = [key for slot, key in enumerate(keys) if slot % 64]
    writer.start()
    try:
        cluster.kill(0)
        read_all(client, untouched, "first")
        write_all(client, untouched, "second")
        cluster.restart(0)
        read_all(client, untouched, "second")
    finally:
        over.set()
        writer.join()
    assert not failures
    assert rounds > 0
    read_all(client, keys[::64], f"round {rounds - 1}")
    assert client.dbsize(target_nodes=RedisCluster.PRIMARIES) == SLOTS


def test_pipelines_scans_and_multi_key_commands(cluster):
    client = connect(cluster, protocol=3)
    pipeline = client.pipeline()
    for number in range(1000):
        pipeline.set(f"pipe:{number}", number)
    assert all(pipeline.execute())
    assert client.mget_nonatomic([f"pipe:{number}" for number in range(1000)]) == [str(n) for n in range(1000)]
    assert sorted(client.scan_iter(match="pipe:*", count=100)) == sorted(f"pipe:{n}" for n in range(1000))
    assert client.mset_nonatomic({f"{{tag}}{n}": n for n in range(10)})
    assert client.mget([f"{{tag}}{n}" for n in range(10)]) == [str(n) for n in range(10)]
    assert client.delete(*[f"pipe:{n}" for n in range(1000)]) == 1000
    assert client.cluster_info(target_nodes=client.get_random_node())["cluster_state"] == "ok"
    assert len(client.cluster_nodes()) == 6
