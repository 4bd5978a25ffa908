"""Waiting for what a failover may delay."""

import time

import redis


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
