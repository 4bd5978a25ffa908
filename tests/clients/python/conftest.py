"""What the tests need running: started and stopped by the scripts that users have."""

import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest
import redis

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Scripted:
    """Six processes on six free ports, with their data in a folder that a variable of the scripts names."""

    def __init__(self, variable, folder):
        self.base = free_base()
        self.folder = folder
        server = os.environ.get("REDOUBT", str(ROOT / "target" / "debug" / "redoubt"))
        self.environment = dict(os.environ, REDOUBT=server, **{variable: str(folder)})

    def script(self, *words, **variables):
        """Runs a script with its arguments and gives what it printed; raises if it failed."""
        name, *arguments = words
        result = subprocess.run(
            [ROOT / "scripts" / name, *arguments],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )
        assert result.returncode == 0, f"{' '.join(words)}:\n{result.stdout}"
        return result.stdout


class LocalCluster(Scripted):
    """Six nodes of `scripts/up`."""

    def __init__(self, folder):
        super().__init__("CLUSTER_DIR", folder)

    def up(self):
        self.script("up", PORT=str(self.base))

    def down(self):
        self.script("down")


class LocalGroup(Scripted):
    """A master, two replicas and three sentinels of `scripts/sentinel-group`."""

    def __init__(self, folder):
        super().__init__("GROUP_DIR", folder)
        self.servers = [self.base + index for index in range(3)]
        self.sentinels = [self.base + index for index in range(3, 6)]

    def up(self):
        self.script("sentinel-group", "up", PORT=str(self.base))

    def down(self):
        self.script("sentinel-group", "down")

    def kill(self, port):
        """SIGKILL; says nothing to anybody."""
        os.kill(int((self.folder / str(port) / "pid").read_text()), signal.SIGKILL)

    def restart(self, port):
        self.script("sentinel-group", "restart", NODE=str(port))


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


def standing(place):
    try:
        place.up()
        yield place
    finally:
        if place.folder.exists():
            place.down()


@pytest.fixture
def cluster(tmp_path):
    yield from standing(LocalCluster(tmp_path / "cluster"))


@pytest.fixture
def group(tmp_path):
    yield from standing(LocalGroup(tmp_path / "group"))


@pytest.fixture
def server(tmp_path):
    binary = os.environ.get("REDOUBT") or str(ROOT / "target" / "debug" / "redoubt")
    port = free_base()
    command = [binary, "server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        patience = time.monotonic() + 30
        while True:
            try:
                redis.Redis(port=port).ping()
                break
            except redis.exceptions.RedisError:
                assert process.poll() is None and time.monotonic() < patience
                time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=[2, 3])
def client(server, request):
    with redis.Redis(port=server, protocol=request.param, decode_responses=True) as client:
        yield client
