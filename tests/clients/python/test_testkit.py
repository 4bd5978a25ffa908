"""The Python package of the test kit, as other projects use it."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import redis
import redoubt_testkit


def test_cluster_fixture(redoubt_cluster):
    redoubt_cluster.kill(1)
    assert redoubt_cluster.wait_until_replaced(1) < 60
    redoubt_cluster.restart(1)
    redoubt_cluster.wait_until_whole()
    assert redoubt_cluster.nodes()[1]["role"] == "replica"


@pytest.mark.redoubt(partitions=True, options=["--maxmemory 50mb"])
def test_marker_configures_fixture(redoubt_sentinel):
    old = redoubt_sentinel.master()
    with redis.Redis(port=redoubt_sentinel.ports[old]) as client:
        assert client.config_get("maxmemory")["maxmemory"] == "52428800"
    redoubt_sentinel.partition([old])
    redoubt_sentinel.wait_until_replaced(old)
    redoubt_sentinel.heal()
    redoubt_sentinel.wait_until_whole()
    assert redoubt_sentinel.master() != old


def test_invalid_request_raises_exception(redoubt_server):
    with pytest.raises(redoubt_testkit.TestkitError, match="a single server has no replica"):
        redoubt_server.failover()


PROGRAM = """
import redoubt_testkit, time
place = redoubt_testkit.server()
print(place.ports[0], flush=True)
time.sleep(600)
"""


def test_servers_end_when_test_process_is_killed():
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(redoubt_testkit.__file__)))
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment)
    port = int(program.stdout.readline())
    with redis.Redis(port=port) as client:
        assert client.ping()
    program.send_signal(signal.SIGKILL)
    program.wait()
    end = time.monotonic() + 30
    while is_open(port):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
