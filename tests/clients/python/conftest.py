"""Fixtures that start servers with the Python package of the test kit (testkit/python)."""

import os
import pathlib

import pytest
import redis

ROOT = pathlib.Path(__file__).resolve().parents[3]
os.environ.setdefault("REDOUBT", str(ROOT / "target" / "debug" / "redoubt"))

pytest_plugins = ["redoubt_testkit.fixtures"]


@pytest.fixture
def server(redoubt_server):
    """The port of one server."""
    return redoubt_server.ports[0]


@pytest.fixture
def cluster(redoubt_cluster):
    return redoubt_cluster


@pytest.fixture
def group(redoubt_sentinel):
    return redoubt_sentinel


@pytest.fixture(params=[2, 3])
def client(server, request):
    with redis.Redis(port=server, protocol=request.param, decode_responses=True) as client:
        yield client
