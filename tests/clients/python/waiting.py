"""Waits for conditions that a failover may delay."""

import time

import redis

# The errors after which an application retries.
ERRORS = (redis.exceptions.RedisError, redis.exceptions.RedisClusterException)


def eventually(what, attempt):
    """Calls `attempt` until it returns a true value, for as long as a failover may take on a slow machine."""
    end = time.monotonic() + 60
    while True:
        failure = None
        try:
            value = attempt()
            if value:
                return value
        except ERRORS as error:
            failure = error
        assert time.monotonic() < end, f"{what}: {failure!r}"
        time.sleep(0.02)


def wait_until_replicated(port):
    """Waits until the replicas of the master on this port have all its current data."""
    with redis.Redis(port=port) as master:
        wanted = master.info("replication")["master_repl_offset"]

        def have_caught_up():
            info = master.info("replication")
            replicas = [value for name, value in info.items() if name.startswith("slave") and isinstance(value, dict)]
            return replicas and all(replica["offset"] >= wanted for replica in replicas)

        eventually("the replicas have it", have_caught_up)
