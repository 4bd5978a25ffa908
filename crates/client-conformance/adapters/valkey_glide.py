"""The adapter of valkey-glide: `redoubt-test judge -- python3 valkey_glide.py`."""

import asyncio
import json
import sys
from importlib.metadata import version

import glide
from glide import (
    AdvancedGlideClusterClientConfiguration,
    ClientSideCache,
    ClusterBatch,
    GlideClusterClient,
    GlideClusterClientConfiguration,
    NodeAddress,
    ProtocolVersion,
    ReadFrom,
    Script,
    TlsAdvancedConfiguration,
)


class Unsupported(Exception):
    pass


def say(**line):
    print(json.dumps(line), flush=True)


def shown(reply):
    """A reply as JSON has it: the library gives bytes."""
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return [shown(item) for item in reply]
    if isinstance(reply, Exception):
        return {"error": f"{type(reply).__name__}: {reply}"}
    return reply


class Adapter:
    async def hello(self, _):
        return {"library": "valkey-glide", "version": version("valkey-glide")}

    def configuration(self, request, subscriptions=None):
        addresses = [NodeAddress(host, int(port)) for host, port in (node.rsplit(":", 1) for node in request["nodes"])]
        ca = request.get("tls_ca")
        tls = TlsAdvancedConfiguration(root_pem_cacerts=open(ca, "rb").read()) if ca else None
        cache = ClientSideCache("kept", 1024, 0, server_assisted=True) if request["caching"] else None
        return GlideClusterClientConfiguration(
            addresses,
            use_tls=bool(ca),
            read_from=ReadFrom.PREFER_REPLICA if request["replicas"] else ReadFrom.PRIMARY,
            request_timeout=request["timeout_ms"],
            protocol=ProtocolVersion.RESP3 if request["protocol"] == 3 or subscriptions else ProtocolVersion.RESP2,
            pubsub_subscriptions=subscriptions,
            client_side_cache=cache,
            advanced_config=AdvancedGlideClusterClientConfiguration(request["timeout_ms"], tls),
        )

    async def connect(self, request):
        if request["mode"] != "cluster":
            raise Unsupported("the library asks no sentinels")
        self.settings = request
        self.client = await GlideClusterClient.create(self.configuration(request))

    async def command(self, request):
        name, *args = request["args"]
        # What is kept, and how long a command may wait, is known of the library's own methods alone.
        if name == "GET":
            return await self.client.get(args[0])
        if name == "BLPOP":
            return await self.client.blpop(args[:-1], float(args[-1]))
        return await self.client.custom_command([name, *args])

    async def script(self, request):
        return await self.client.invoke_script(Script(request["source"]), request["keys"], request["args"])

    async def batch(self, request, is_atomic):
        batch = ClusterBatch(is_atomic)
        for command in request["commands"]:
            batch.custom_command(command)
        return await self.client.exec(batch, raise_on_error=is_atomic)

    async def pipeline(self, request):
        return await self.batch(request, False)

    async def transaction(self, request):
        return await self.batch(request, True)

    async def subscribe(self, request):
        """The library wants to know channels when a client is made; this is a client of its own for them."""
        modes = GlideClusterClientConfiguration.PubSubChannelModes
        mode = modes.Sharded if request["sharded"] else modes.Exact
        tell = lambda message, _: say(message={"channel": shown(message.channel), "data": shown(message.message)})
        subscriptions = GlideClusterClientConfiguration.PubSubSubscriptions({mode: set(request["channels"])}, tell, None)
        self.listener = await GlideClusterClient.create(self.configuration(self.settings, subscriptions))

    async def close(self, _):
        await self.client.close()


async def main():
    # Its log goes to standard output, which is the judge's.
    glide.Logger.init(glide.LogLevel.OFF)
    adapter = Adapter()
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        try:
            say(id=request["id"], ok=shown(await getattr(adapter, request["do"])(request)))
        except Unsupported as reason:
            say(id=request["id"], unsupported=str(reason))
        except Exception as error:  # Whatever the library raises is its answer.
            say(id=request["id"], error=f"{type(error).__name__}: {error}")


asyncio.run(main())
