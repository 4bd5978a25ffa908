"""A small client with a fault that its first argument names; without one, none that a scenario would see.

It needs no library: one connection for each node; in a cluster one map of slots, under sentinels one master.
"""

import json
import socket
import sys
import threading
import time

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
# Redirects that are followed; a fault follows for ever.
MOST_REDIRECTS = 5
OUT = threading.Lock()


def say(**line):
    with OUT:
        print(json.dumps(line), flush=True)


def slot_of(key):
    begin = key.find("{")
    end = key.find("}", begin + 1)
    if begin >= 0 and end > begin + 1:
        key = key[begin + 1:end]
    crc = 0
    for byte in key.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % 16384


class ServerError(Exception):
    pass


class Link:
    def __init__(self, node, seconds):
        self.socket = socket.create_connection(node, timeout=seconds)
        self.file = self.socket.makefile("rb")

    def send(self, args):
        words = [str(word).encode() for word in args]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        kind, text = line[:1], line[1:-2].decode()
        if kind == b"+":
            return text
        if kind == b"-":
            raise ServerError(text)
        if kind == b":":
            return int(text)
        if kind == b"$":
            if int(text) < 0:
                return None
            data = self.file.read(int(text) + 2)
            if len(data) != int(text) + 2:
                raise ConnectionError("the connection ended")
            return data[:-2].decode()
        if kind == b"*":
            return [self.read() for _ in range(int(text))]
        raise ConnectionError("no RESP")

    def close(self):
        # The file keeps the socket open.
        self.file.close()
        self.socket.close()


class Links:
    def __init__(self, nodes, seconds):
        self.seeds, self.seconds, self.links = nodes, seconds, {}

    def link(self, node):
        if node not in self.links:
            self.links[node] = Link(node, self.seconds)
        return self.links[node]

    def ask(self, node, *args):
        """One command to one node. What breaks is dropped: a reply that comes late must find nobody."""
        try:
            link = self.link(node)
            link.send(args)
            return link.read()
        except OSError:
            link = self.links.get(node)
            if FAULT == "mixes-up-replies" and link:
                # Goes on with the connection; the late reply is the next one that comes.
                link.file = link.socket.makefile("rb")
            elif link:
                self.links.pop(node).close()
            raise


class Clustered(Links):
    def __init__(self, nodes, seconds):
        super().__init__(nodes, seconds)
        self.map = []
        self.refresh()

    def refresh(self):
        nodes = self.seeds + [node for _, _, node in self.map]
        for node in dict.fromkeys(nodes):
            try:
                told = self.ask(node, "CLUSTER", "SLOTS")
            except (OSError, ServerError):
                continue
            if told:
                self.map = [(first, last, (master[0], master[1])) for first, last, master, *_ in told]
                return
        if not self.map:
            raise ConnectionError("nobody tells a map")

    def owner(self, slot):
        for first, last, node in self.map:
            if first <= slot <= last:
                return node
        raise ServerError("CLUSTERDOWN nobody serves the slot")

    def command(self, *args):
        node, asking = self.owner(slot_of(args[1])), False
        redirects = 0
        while True:
            try:
                if asking:
                    self.ask(node, "ASKING")
                return self.ask(node, *args)
            except ServerError as error:
                code, *rest = str(error).split(" ")
                redirects += 1
                if code not in ("MOVED", "ASK") or (redirects > MOST_REDIRECTS and FAULT != "follows-for-ever"):
                    raise
                host, port = rest[1].rsplit(":", 1)
                node, asking = (host, int(port)), code == "ASK"
                if code == "MOVED" and FAULT != "never-refreshes":
                    self.refresh()
            except OSError:
                if FAULT == "executes-twice":
                    return self.ask(node, *args)
                self.refresh()
                raise

    def listen(self, channel, done):
        nodes, at = [node for _, _, node in self.map], 0
        while True:
            try:
                link = Link(nodes[at % len(nodes)], 0.5)
                link.send(["SUBSCRIBE", channel])
                link.read()
                done.set()
                self.hear(link)
            except OSError:
                if FAULT == "drops-subscriptions":
                    return
                at += 1
                time.sleep(0.1)

    @staticmethod
    def hear(link):
        while True:
            try:
                kind, channel, data = link.read()
            except TimeoutError:
                link.file = link.socket.makefile("rb")
                continue
            if kind == "message":
                say(message={"channel": channel, "data": data})


class Watched(Links):
    """Sentinels name the master, and the master has to say so too."""

    def __init__(self, nodes, seconds, name):
        super().__init__(nodes, seconds)
        self.name, self.master = name, None

    def find(self):
        for sentinel in self.seeds:
            try:
                host, port = self.ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
                if self.ask((host, int(port)), "ROLE")[0] == "master":
                    return host, int(port)
            except (OSError, ServerError, TypeError):
                continue
        raise ConnectionError("no sentinel knows a master that is one")

    def command(self, *args):
        self.master = self.master or self.find()
        try:
            return self.ask(self.master, *args)
        except (OSError, ServerError):
            if FAULT != "never-asks-again":
                self.master = None
            raise


class Adapter:
    def hello(self, _):
        return {"library": "planted", "version": FAULT or "no fault"}

    def connect(self, request):
        nodes = [(host, int(port)) for host, port in (node.rsplit(":", 1) for node in request["nodes"])]
        seconds = request["timeout_ms"] / 1000
        if request["mode"] == "cluster":
            self.client = Clustered(nodes, seconds)
        else:
            self.client = Watched(nodes, seconds, request["master"])

    def command(self, request):
        if FAULT == "invents-replies" and request["args"][0] == "RPUSH":
            return 1
        return self.client.command(*request["args"])

    def subscribe(self, request):
        done = threading.Event()
        threading.Thread(target=self.client.listen, args=(request["channels"][0], done), daemon=True).start()
        if not done.wait(5):
            raise TimeoutError("no confirmation")


def told(error):
    if FAULT == "denies-what-was-done" and isinstance(error, OSError):
        return "CLUSTERDOWN The cluster is down"
    return "it failed" if FAULT == "hides-what-is-known" else str(error)


def main():
    adapter = Adapter()
    for line in sys.stdin:
        request = json.loads(line)
        do = getattr(adapter, request["do"], None)
        try:
            if do is None:
                say(id=request["id"], unsupported=f"no {request['do']}")
            else:
                say(id=request["id"], ok=do(request))
        except (OSError, ServerError) as error:
            say(id=request["id"], error=told(error))


main()
