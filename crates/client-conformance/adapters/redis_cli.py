"""The adapter of redis-cli, or another program of its form: `redoubt-test judge -- python3 redis_cli.py [redis-cli]`."""

import json
import subprocess
import sys
import tempfile
import threading

CLI = sys.argv[1] if len(sys.argv) > 1 else "redis-cli"
OUT = threading.Lock()


class Unsupported(Exception):
    pass


def say(**line):
    with OUT:
        print(json.dumps(line), flush=True)


def typed(words):
    """Words as one types them: the program reads lines with quotes."""
    return " ".join(json.dumps(str(word)) for word in words)


class Adapter:
    """The program is started for each request, as a person would; its replies are shown in JSON."""

    def hello(self, _):
        told = subprocess.run([CLI, "--version"], capture_output=True, text=True, check=True).stdout.split()
        return {"library": told[0], "version": told[1]}

    def connect(self, request):
        if request["mode"] != "cluster":
            raise Unsupported("the program asks no sentinels")
        if request["replicas"]:
            raise Unsupported("the program reads from masters")
        if request["caching"]:
            raise Unsupported("the program keeps nothing")
        host, port = request["nodes"][0].rsplit(":", 1)
        tls = ["--tls", "--cacert", request["tls_ca"]] if "tls_ca" in request else []
        self.command_line = [CLI, "-c", "-h", host, "-p", port, f"-{request['protocol']}", *tls, "--json"]

    def run(self, *lines, options=()):
        """The replies to these lines, which are typed one after another."""
        text = "\n".join(typed(line) for line in lines)
        done = subprocess.run([*self.command_line, *options], input=text, capture_output=True, text=True)
        replies, rest = [], "\n".join(line for line in done.stdout.splitlines() if not line.startswith("-> Redirected"))
        while rest := rest.strip():
            try:
                reply, end = json.JSONDecoder().raw_decode(rest)
            except json.JSONDecodeError:
                break
            replies.append(reply)
            rest = rest[end:]
        if done.returncode or rest or not replies:
            raise RuntimeError(" ".join((rest + " " + done.stderr).split()))
        return replies

    def command(self, request):
        return self.run(request["args"], options=["-e"])[-1]

    def script(self, request):
        """It sends the text of a file by EVAL."""
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
            file.write(request["source"])
            file.flush()
            words = [*request["keys"], ",", *request["args"]]
            done = subprocess.run(
                [*self.command_line, "-e", "--eval", file.name, *words], capture_output=True, text=True
            )
        if done.returncode:
            raise RuntimeError(" ".join((done.stdout + done.stderr).split()))
        return json.loads(done.stdout)

    def transaction(self, request):
        return self.run(["MULTI"], *request["commands"], ["EXEC"])[-1]

    def pipeline(self, _):
        raise Unsupported("the program waits for each reply")

    def subscribe(self, request):
        name = "SSUBSCRIBE" if request["sharded"] else "SUBSCRIBE"
        command_line = [*self.command_line, name, *request["channels"]]
        # The program itself is left running, as a person would leave it.
        heard = subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True)
        done = threading.Event()
        threading.Thread(target=self.listen, args=(heard.stdout, done), daemon=True).start()
        if not done.wait(5):
            raise TimeoutError("no confirmation")

    @staticmethod
    def listen(lines, done):
        for line in lines:
            if line.startswith("["):
                kind, channel, data = json.loads(line)
                if kind.endswith("subscribe"):
                    done.set()
                else:
                    say(message={"channel": channel, "data": data})

    def close(self, _):
        pass


def main():
    adapter = Adapter()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            say(id=request["id"], ok=getattr(adapter, request["do"])(request))
        except Unsupported as reason:
            say(id=request["id"], unsupported=str(reason))
        except Exception as error:  # Whatever the program says is its answer.
            say(id=request["id"], error=f"{type(error).__name__}: {error}")


main()
