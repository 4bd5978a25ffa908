"""The adapter of redis-cli, or another program of its form: `redoubt-test judge -- python3 redis_cli.py [redis-cli]`."""

import json
import subprocess
import sys
import threading

CLI = sys.argv[1] if len(sys.argv) > 1 else "redis-cli"
OUT = threading.Lock()


class Unsupported(Exception):
    pass


def say(**line):
    with OUT:
        print(json.dumps(line), flush=True)


def typed(word):
    """A word as one types it: the program reads lines with quotes."""
    return json.dumps(str(word))


class Adapter:
    """One interactive program, as a person would have it; its replies are shown in JSON."""

    def hello(self, _):
        told = subprocess.run([CLI, "--version"], capture_output=True, text=True, check=True).stdout.split()
        return {"library": told[0], "version": told[1]}

    def connect(self, request):
        if request["mode"] != "cluster":
            raise Unsupported("the program asks no sentinels")
        if request["replicas"]:
            raise Unsupported("the program reads from masters")
        host, port = request["nodes"][0].rsplit(":", 1)
        self.command_line = [CLI, "-c", "-h", host, "-p", port, f"-{request['protocol']}", "--no-auth-warning"]

    def run(self, args):
        line = " ".join(typed(word) for word in args)
        done = subprocess.run([*self.command_line, "--json", "-e"], input=line, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if not line.startswith("-> Redirected")]
        if done.returncode != 0 or not lines:
            raise RuntimeError(" ".join((done.stdout + done.stderr).split()))
        return json.loads("\n".join(lines))

    def command(self, request):
        return self.run(request["args"])


def main():
    adapter = Adapter()
    for line in sys.stdin:
        request = json.loads(line)
        do = getattr(adapter, request["do"], None)
        try:
            if do is None:
                raise Unsupported(f"the program has no {request['do']}")
            say(id=request["id"], ok=do(request))
        except Unsupported as reason:
            say(id=request["id"], unsupported=str(reason))
        except Exception as error:  # Whatever the program says is its answer.
            say(id=request["id"], error=f"{type(error).__name__}: {error}")


main()
