"""The deployments that redis-py connects to: one server, a sentinel group, a cluster."""

import contextlib
import os

import redis
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster
from redis.crc import key_slot
from redis.sentinel import Sentinel

MODES = {"standalone": "server", "sentinel": "sentinel", "cluster": "cluster"}
# A sentinel group with TLS accepts only TLS connections, so a second group runs without TLS.
HAVE_BOTH_KINDS_OF_PORTS = ("standalone", "cluster")
# The hash tag of every key whose master is killed.
TAG = "{key:0}"


class Mode:
    """The servers of a mode, and a factory for their clients."""

    def __init__(self, name, kit, certificates):
        self.name, self._kit, self._certificates = name, kit, str(certificates)
        self._open = contextlib.ExitStack()

    def __enter__(self):
        both = self.name in HAVE_BOTH_KINDS_OF_PORTS
        self.place = self._start(tls=self._certificates if both else None)
        self.tls_place = self.place if both else self._start(tls=self._certificates)
        return self

    def __exit__(self, *_):
        self._open.close()

    def _start(self, **options):
        program = os.environ.get("CLIENTS_PROGRAM")
        return self._open.enter_context(self._kit.start(MODES[self.name], program=program, **options))

    @property
    def places(self):
        """All deployments of this mode."""
        return list({place.name: place for place in (self.place, self.tls_place)}.values())

    def connect(self, tls=False, replicas=False, **options):
        """Connects a client, over TLS if `tls`, reading from replicas if `replicas`."""
        options = {"decode_responses": True, "socket_timeout": 10, **options}
        secure = {"ssl": True, "ssl_ca_certs": f"{self._certificates}/ca.crt"} if tls else {}
        options.update(secure)
        place = self.tls_place if tls else self.place
        addresses = place.tls_addresses if tls else place.addresses
        if self.name == "standalone":
            host, port = addresses[0]
            return redis.Redis(host=host, port=port, **options)
        if self.name == "sentinel":
            sentinels = place.tls_sentinels if tls else place.sentinels
            sentinel = Sentinel(sentinels, sentinel_kwargs={"socket_timeout": 10, **secure})
            find = sentinel.slave_for if replicas else sentinel.master_for
            return find(place.master_name, **options)
        if replicas:
            options["load_balancing_strategy"] = LoadBalancingStrategy.RANDOM_REPLICA
        return RedisCluster(startup_nodes=[ClusterNode(*address) for address in addresses], **options)

    def on_servers(self, *words):
        """The reply of each running server to a command."""
        said = []
        for host, port in self.place.addresses:
            with contextlib.suppress(redis.exceptions.ConnectionError), redis.Redis(host=host, port=port) as server:
                said.append(server.execute_command(*words))
        return said

    def master_of_tag(self, place):
        """The index of the node that serves the keys with the hash tag."""
        if self.name == "sentinel":
            return place.master()
        slot = key_slot(TAG.encode())
        nodes = place.nodes()
        return next(node["node"] for node in nodes if any(first <= slot <= last for first, last in node["slots"]))
