"""Throw-away Redoubt servers for tests, and faults on request.

    with redoubt_testkit.cluster() as cluster:
        client = RedisCluster.from_url(cluster.url)
        cluster.kill(0)
        cluster.wait_until_replaced(0)

One process, `redoubt testkit`, starts and breaks them; when this one ends, however it does, so do they. The binary is
what REDOUBT names, else `redoubt` in PATH.
"""

import json
import os
import subprocess
import threading

__all__ = ["Kit", "Place", "TestkitError", "cluster", "sentinel", "server"]


class TestkitError(Exception):
    """What was asked for could not be done."""

    __test__ = False  # no test class for pytest


class Kit:
    """The process that starts and breaks servers."""

    def __init__(self, binary=None):
        binary = str(binary or os.environ.get("REDOUBT") or "redoubt")
        self._process = subprocess.Popen(
            [binary, "testkit"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lock = threading.Lock()
        self._asked = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def ask(self, do, **words):
        """One request and its answer; words that are None are left out."""
        with self._lock:
            self._asked += 1
            request = {"id": self._asked, "do": do}
            request.update({name: word for name, word in words.items() if word is not None})
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError as error:
                raise TestkitError(f"redoubt testkit is gone: {error}") from error
        if not line:
            raise TestkitError("redoubt testkit is gone")
        answer = json.loads(line)
        if "error" in answer:
            raise TestkitError(answer["error"])
        return answer["ok"]

    def start(self, kind, **options):
        """A `server`, `cluster` or `sentinel` group; docs/testkit.md lists the options."""
        return Place(self, self.ask("start", kind=kind, **options))

    def close(self):
        """Ends the process, and with it all that it started."""
        if self._process.stdin:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        self._process.wait()
        self._process.stdout.close()


class Place:
    """What was started. Its nodes have numbers; those with data come first, then sentinels."""

    def __init__(self, kit, shown, owns_kit=False):
        self.kit = kit
        self.name = shown["place"]
        self.kind = shown["kind"]
        self.master_name = shown.get("master_name")
        self.ports = [node["port"] for node in shown["nodes"]]
        self.tls_ports = [node["tls_port"] for node in shown["nodes"] if "tls_port" in node]
        self._sentinels = len(self.ports) // 2 if self.kind == "sentinel" else 0
        self._owns_kit = owns_kit
        self._ended = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    @property
    def addresses(self):
        """(host, port) of every node with data."""
        return self._of_servers(self.ports)

    @property
    def tls_addresses(self):
        """The same for TLS, if it was started with it."""
        return self._of_servers(self.tls_ports)

    @property
    def sentinels(self):
        """(host, port) of every sentinel."""
        return self._of_sentinels(self.ports)

    @property
    def tls_sentinels(self):
        """The same for TLS, if it was started with it."""
        return self._of_sentinels(self.tls_ports)

    def _of_servers(self, ports):
        return [("127.0.0.1", port) for port in ports[: len(ports) - self._sentinels]]

    def _of_sentinels(self, ports):
        return [("127.0.0.1", port) for port in ports[len(ports) - self._sentinels :]]

    @property
    def url(self):
        """The first node, as clients are told it."""
        return f"redis://127.0.0.1:{self.ports[0]}"

    def ask(self, do, **words):
        """A request about this place."""
        return self.kit.ask(do, place=self.name, **words)

    def nodes(self):
        """The nodes as they are now: role, port, pid, master, slots, folder."""
        return self.ask("show")["nodes"]

    def number(self, port):
        """The number of the node on this port, of either kind."""
        return self.ports.index(port) if port in self.ports else self.tls_ports.index(port)

    def master(self):
        """The number of the master that the sentinels name, or of the first one that there is."""
        return next(node["node"] for node in self.nodes() if node["role"] == "master")

    def kill(self, node):
        """SIGKILL."""
        self.ask("kill", node=node)

    def stop(self, node):
        """SIGTERM, and its end."""
        self.ask("stop", node=node)

    def freeze(self, node):
        """It is there and silent."""
        self.ask("freeze", node=node)

    def thaw(self, node):
        """It goes on."""
        self.ask("thaw", node=node)

    def restart(self, node, data=True):
        """Starts it again, stopped first if it runs; without its data if so told."""
        self.ask("restart", node=node, data=data)

    def partition(self, *groups):
        """Each group of nodes reaches only its own; the others stay together. Clients reach everybody."""
        self.ask("partition", groups=[list(group) for group in groups])

    def lose(self, node, to=()):
        """Loses what a node sends, to these or to all."""
        self.ask("lose", node=node, to=list(to))

    def heal(self):
        """Ends partitions and losses."""
        self.ask("heal")

    def move_slot(self, slot, to):
        """Moves a slot and its keys to a master."""
        self.ask("move-slot", slot=slot, to=to)

    def failover(self, node=None, how=None):
        """A replica takes over; gives its number. In a cluster say which one."""
        return self.ask("failover", node=node, how=how)["node"]

    def wait_until_whole(self, seconds=60):
        """All that run agree and are in step."""
        return self.ask("wait", until="whole", seconds=float(seconds))["seconds"]

    def wait_until_replaced(self, node, seconds=60):
        """Somebody else serves what it served; gives the seconds that took."""
        return self.ask("wait", until="replaced", node=node, seconds=float(seconds))["seconds"]

    def end(self):
        """Ends and removes it."""
        if self._ended:
            return
        self._ended = True
        if self._owns_kit:
            self.kit.close()
        else:
            self.ask("end")


def _alone(kind, options):
    binary = options.pop("binary", None)
    kit = Kit(binary)
    try:
        return Place(kit, kit.ask("start", kind=kind, **options), owns_kit=True)
    except BaseException:
        kit.close()
        raise


def server(**options):
    """One server."""
    return _alone("server", options)


def cluster(**options):
    """A cluster: masters=3, replicas=1."""
    return _alone("cluster", options)


def sentinel(**options):
    """A master, two replicas and three sentinels."""
    return _alone("sentinel", options)
