"""The adapter of coredis: `redoubt-test judge -- python3 coredis_client.py`. The library speaks RESP3 alone."""

import asyncio
import contextlib
import json
import sys

import coredis
from coredis.patterns.cache import LRUCache


def say(**line):
    print(json.dumps(line), flush=True)


class Adapter:
    def __init__(self, open_until_end):
        self.open = open_until_end
        self.tasks = []

    async def hello(self, _):
        return {"library": "coredis", "version": coredis.__version__}

    async def connect(self, request):
        addresses = [(host, int(port)) for host, port in (node.rsplit(":", 1) for node in request["nodes"])]
        seconds = request["timeout_ms"] / 1000
        options = {"stream_timeout": seconds, "connect_timeout": seconds, "decode_responses": True}
        if request["caching"]:
            options["cache"] = LRUCache()
        if "tls_ca" in request:
            options |= {"ssl": True, "ssl_ca_certs": request["tls_ca"]}
        if request["mode"] == "cluster":
            nodes = [{"host": host, "port": port} for host, port in addresses]
            replicas = {"read_from_replicas": True} if request["replicas"] else {}
            self.client = coredis.RedisCluster(startup_nodes=nodes, **replicas, **options)
        else:
            self.sentinel = await self.open.enter_async_context(coredis.Sentinel(addresses, **options))
            self.client = self.sentinel.primary_for(request["master"])
        await self.open.enter_async_context(self.client)

    async def command(self, request):
        name, *args = request["args"]
        method = getattr(self.client, name.lower())
        match name:
            case "BLPOP" | "BRPOP":
                return await method(args[:-1], float(args[-1]))
            case "RPUSH" | "LPUSH":
                return await method(args[0], args[1:])
            case "MGET" | "DEL" | "EXISTS":
                return await method(args)
            case "MSET":
                return await method(dict(zip(args[::2], args[1::2])))
            case "LRANGE":
                return await method(args[0], int(args[1]), int(args[2]))
            case _:
                return await method(*args)

    async def script(self, request):
        script = self.client.register_script(request["source"])
        return await script.execute(keys=request["keys"], args=request["args"])

    async def batch(self, request, transaction):
        requests = []
        async with self.client.pipeline(transaction=transaction, raise_on_error=transaction) as pipeline:
            for command in request["commands"]:
                requests.append(Adapter.queued(pipeline, command))
        return [await self.reply(asked) for asked in requests]

    @staticmethod
    def queued(pipeline, command):
        name, *args = command
        method = getattr(pipeline, name.lower())
        return method(args[0], args[1:]) if name in ("RPUSH", "LPUSH") else method(*args)

    @staticmethod
    async def reply(asked):
        try:
            return await asked
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    async def pipeline(self, request):
        return await self.batch(request, False)

    async def transaction(self, request):
        return await self.batch(request, True)

    async def subscribe(self, request):
        sharded = request["sharded"] and isinstance(self.client, coredis.RedisCluster)
        done = asyncio.Event()
        self.tasks.append(asyncio.create_task(self.listen(request["channels"], sharded, done)))
        await asyncio.wait_for(done.wait(), 5)

    async def listen(self, channels, sharded, done):
        pubsub = self.client.sharded_pubsub() if sharded else self.client.pubsub()
        async with pubsub:
            await pubsub.subscribe(*channels)
            done.set()
            async for message in pubsub:
                if message["type"] in ("message", "smessage"):
                    say(message={"channel": message["channel"], "data": message["data"]})

    async def close(self, _):
        await self.open.aclose()


def shown(reply):
    if isinstance(reply, (tuple, set)):
        return [shown(item) for item in reply]
    return reply


async def main():
    async with contextlib.AsyncExitStack() as open_until_end:
        adapter = Adapter(open_until_end)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            try:
                say(id=request["id"], ok=shown(await getattr(adapter, request["do"])(request)))
            except Exception as error:  # Whatever the library raises is its answer.
                say(id=request["id"], error=f"{type(error).__name__}: {error}")


asyncio.run(main())
