"""A cluster for the tests: started and stopped by the scripts that users have."""

import os
import pathlib
import socket
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


class LocalCluster:
    """Six nodes of `scripts/up` on six free ports, in a folder of their own."""

    def __init__(self, folder):
        self.base = free_base()
        server = os.environ.get("REDOUBT", str(ROOT / "target" / "debug" / "redoubt"))
        self.environment = dict(os.environ, CLUSTER_DIR=str(folder), REDOUBT=server)
        self.script("up", PORT=str(self.base))

    def script(self, name, **variables):
        """Runs a script and gives what it printed; raises if it failed."""
        result = subprocess.run(
            [ROOT / "scripts" / name],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )
        assert result.returncode == 0, f"{name}:\n{result.stdout}"
        return result.stdout


def free_base():
    """The first of six ports in a row that are free, with the bus ports 10000 above them."""
    span = range(18000, 18990, 6)
    start = os.getpid() % len(span)
    for base in [*span[start:], *span[:start]]:
        if all(is_free(port) and is_free(port + 10000) for port in range(base, base + 6)):
            return base
    raise AssertionError("no six free ports in a row")


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.fixture
def cluster(tmp_path):
    cluster = None
    folder = tmp_path / "cluster"
    try:
        cluster = LocalCluster(folder)
        yield cluster
    finally:
        if folder.exists():
            environment = dict(os.environ, CLUSTER_DIR=str(folder))
            subprocess.run([ROOT / "scripts" / "down"], env=environment, check=False)
