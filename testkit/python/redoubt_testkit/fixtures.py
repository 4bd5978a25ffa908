"""Fixtures for pytest: a test asks for what it needs by name.

    def test_that_we_survive(redoubt_cluster):
        redoubt_cluster.kill(0)

Each test gets servers of its own; one process starts them all. A marker says more:
`@pytest.mark.redoubt(partitions=True, options=["--maxmemory 100mb"])`.
"""

import pytest

import redoubt_testkit


def pytest_configure(config):
    config.addinivalue_line("markers", "redoubt(**options): how redoubt_server and its kin are started")


@pytest.fixture(scope="session")
def redoubt_kit():
    with redoubt_testkit.Kit() as kit:
        yield kit


def _place(kit, request, kind):
    marker = request.node.get_closest_marker("redoubt")
    with kit.start(kind, **(marker.kwargs if marker else {})) as place:
        yield place


@pytest.fixture
def redoubt_server(redoubt_kit, request):
    yield from _place(redoubt_kit, request, "server")


@pytest.fixture
def redoubt_cluster(redoubt_kit, request):
    yield from _place(redoubt_kit, request, "cluster")


@pytest.fixture
def redoubt_sentinel(redoubt_kit, request):
    yield from _place(redoubt_kit, request, "sentinel")
