"""What redis-py offers, in every mode and both protocols; each test is a cell of the table in docs/clients.md."""

import contextlib
import subprocess
import threading
import time

import pytest
import redis
from redis.cache import CacheConfig
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster
from redis.sentinel import Sentinel

from conftest import ROOT
from waiting import eventually

MODES = {"standalone": "server", "sentinel": "sentinel", "cluster": "cluster"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run([ROOT / "scripts" / "make-certificates", folder], check=True, timeout=60, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module", params=MODES)
def mode(request, redoubt_kit, certificates):
    with redoubt_kit.start(MODES[request.param], tls=str(certificates)) as place:
        yield Mode(request.param, place, certificates)


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def protocol(request):
    return request.param


@pytest.fixture
def client(mode, protocol):
    with mode.connect(protocol=protocol) as client:
        yield client


class Mode:
    """How clients find their server."""

    def __init__(self, name, place, certificates):
        self.name, self.place, self.certificates = name, place, certificates

    def connect(self, **options):
        options = {"decode_responses": True, "socket_timeout": 10, **options}
        if self.name == "standalone":
            return redis.Redis(port=self.place.ports[0], **options)
        if self.name == "sentinel":
            return Sentinel(self.place.sentinels, socket_timeout=10).master_for(self.place.master_name, **options)
        return RedisCluster(startup_nodes=[ClusterNode(*address) for address in self.place.addresses], **options)

    def connect_tls(self, **options):
        options.update(ssl=True, ssl_ca_certs=str(self.certificates / "ca.crt"), decode_responses=True)
        if self.name == "standalone":
            return redis.Redis(port=self.place.tls_ports[0], **options)
        return RedisCluster(host="127.0.0.1", port=self.place.tls_ports[0], **options)

    def on_servers(self, *words):
        for host, port in self.place.addresses:
            with redis.Redis(host=host, port=port) as server:
                server.execute_command(*words)


def no(client_offers):
    pytest.skip(f"not offered: {client_offers}")


@pytest.mark.feature("pipelines")
def test_pipelines(client):
    pipeline = client.pipeline(transaction=False) if not isinstance(client, RedisCluster) else client.pipeline()
    for number in range(100):
        pipeline.set(f"{{pipe}}{number}", number)
    assert all(pipeline.execute())
    assert client.mget("{pipe}1", "{pipe}99") == ["1", "99"]


@pytest.mark.feature("cluster pipelines")
def test_a_pipeline_over_all_slots(client, mode):
    if mode.name != "cluster":
        pytest.skip("not meant: one server")
    pipeline = client.pipeline()
    for number in range(200):
        pipeline.set(f"spread{number}", number)
    assert all(pipeline.execute())
    assert client.mget_nonatomic([f"spread{number}" for number in range(200)]) == [str(n) for n in range(200)]


@pytest.mark.feature("transactions")
def test_transactions(client):
    with client.pipeline(transaction=True) as pipe:
        pipe.watch("{tx}a")
        pipe.multi()
        pipe.set("{tx}a", 1)
        pipe.incr("{tx}a")
        assert pipe.execute() in ([True, 2], ["OK", 2])


@pytest.mark.feature("scripts")
def test_scripts(client):
    double = client.register_script("return redis.call('incrby', KEYS[1], ARGV[1] * 2)")
    client.delete("doubled")
    assert double(keys=["doubled"], args=[4]) == 8


def next_message(read, kind):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        message = read()
        if message and message["type"] == kind:
            return message["data"]
    raise AssertionError(f"no {kind} came")


@pytest.mark.feature("pub/sub")
def test_messages(client):
    with client.pubsub() as subscription:
        subscription.subscribe("news")
        read = lambda: subscription.get_message(timeout=1)
        next_message(read, "subscribe")
        client.publish("news", "hi")
        assert next_message(read, "message") == "hi"


@pytest.mark.feature("sharded pub/sub")
def test_messages_of_a_shard(client, mode):
    with client.pubsub() as subscription:
        subscription.ssubscribe("orders")
        if mode.name == "cluster":
            read = lambda: subscription.get_sharded_message(timeout=1)
        else:
            read = lambda: subscription.get_message(timeout=1)
        next_message(read, "ssubscribe")
        client.spublish("orders", "hi")
        assert next_message(read, "smessage") == "hi"


@pytest.mark.feature("client-side caching")
def test_a_cached_value_is_dropped_when_another_client_changes_it(mode, protocol, client):
    if protocol == 2:
        no("only with RESP3")
    client.set("cached", "old")
    with contextlib.ExitStack() as stack:
        try:
            caching = stack.enter_context(mode.connect(protocol=3, cache_config=CacheConfig()))
            assert caching.get("cached") == "old"
        except (redis.exceptions.ConnectionError, redis.exceptions.RedisClusterException) as error:
            if "supported by Redis 7.4 or later" not in str(error):
                raise
            pytest.skip("refused by the client: the server calls itself Redis before 7.4")
        client.set("cached", "new")
        eventually("the new value is seen", lambda: caching.get("cached") == "new")
        cache = caching.get_cache() if hasattr(caching, "get_cache") else None
        assert cache is None or cache.size > 0


@pytest.mark.feature("blocking")
def test_blocking(client, mode, protocol):
    client.delete("jobs")
    popped = []
    with mode.connect(protocol=protocol) as other:
        waiting = threading.Thread(target=lambda: popped.extend(other.blpop(["jobs"], 10)))
        waiting.start()
        client.rpush("jobs", "one")
        waiting.join(20)
    assert popped == ["jobs", "one"]


@pytest.mark.feature("scan iterators")
def test_scan_iterators(client):
    for number in range(100):
        client.set(f"scanned{number}", number)
    assert len(set(client.scan_iter(match="scanned*", count=10))) == 100


@pytest.mark.feature("reading from replicas")
def test_reading_from_replicas(client, mode, protocol):
    if mode.name == "standalone":
        pytest.skip("not meant: one server")
    client.set("replicated", "yes")
    if mode.name == "sentinel":
        sentinel = Sentinel(mode.place.sentinels, socket_timeout=10)
        reader = sentinel.slave_for(mode.place.master_name, decode_responses=True, protocol=protocol)
    else:
        reader = mode.connect(protocol=protocol, load_balancing_strategy=LoadBalancingStrategy.RANDOM_REPLICA)
    with contextlib.closing(reader):
        for _ in range(10):
            eventually("a replica has it", lambda: reader.get("replicated") == "yes")


@pytest.mark.feature("ACL")
def test_a_user_with_a_password(client, mode, protocol):
    mode.on_servers("ACL", "SETUSER", "app", "on", ">secret", "~app:*", "&*", "+@all")
    with mode.connect(protocol=protocol, username="app", password="secret") as app:
        assert app.set("app:key", 1)
        with pytest.raises(redis.exceptions.NoPermissionError):
            app.set("other", 1)


@pytest.mark.feature("TLS")
def test_tls(mode, protocol):
    if mode.name == "sentinel":
        pytest.skip("not tested: the kit's sentinels watch without TLS")
    with mode.connect_tls(protocol=protocol) as client:
        for number in range(20):
            assert client.set(f"tls{number}", number)


@pytest.mark.feature("reconnection")
def test_reconnection(client, mode):
    assert client.set("kept", 1)
    mode.on_servers("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    eventually("it is connected again", lambda: client.get("kept") == "1")


@pytest.mark.feature("failover")
def test_failover(client, mode):
    """The last one: its master is killed, and comes back."""
    if mode.name == "standalone":
        pytest.skip("not meant: one server")
    key = "key:0"  # in the first range of slots
    place = mode.place
    old = place.master() if mode.name == "sentinel" else next(n["node"] for n in place.nodes() if [0, 5460] in n["slots"])
    assert client.set(key, "before")
    place.kill(old)
    eventually("the new master takes writes", lambda: client.set(key, "after"))
    assert client.get(key) == "after"
    place.restart(old)
    place.wait_until_whole()
