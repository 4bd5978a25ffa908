"""What the tests need running: the test kit's Python package starts it (testkit/python)."""

import json
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


def pytest_configure(config):
    config.addinivalue_line("markers", "feature(name): a column of the table in docs/clients.md")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A line for scripts/clients-page, if it asks for one."""
    outcome = yield
    report = outcome.get_result()
    feature, folder = item.get_closest_marker("feature"), os.environ.get("CLIENTS_TABLE")
    if not (feature and folder) or report.when != "call" and not report.failed and not report.skipped:
        return
    result = {"passed": "yes", "failed": "failed"}.get(report.outcome)
    if result is None:
        result = report.longrepr[2].removeprefix("Skipped: ")
    cell = {
        "client": f"redis-py {redis.__version__}",
        "mode": item.callspec.params["mode"],
        "protocol": item.callspec.params["protocol"],
        "feature": feature.args[0],
        "result": result,
    }
    with open(pathlib.Path(folder) / "redis-py.jsonl", "a", encoding="utf-8") as out:
        out.write(json.dumps(cell) + "\n")
