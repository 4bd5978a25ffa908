"""Shared code of the benchmarks: starting servers, a client, and the report.

Uses only the standard library. Results are printed. With RECORD=1 they are also written into a section of docs/BENCHMARKS.md
with a description of the machine, a table and a chart (docs/charts/NAME.svg); recording again replaces the section.
"""

import gc
import multiprocessing
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Label of the server that only parses and replies.
FLOOR = "floor"
COLOURS = ["#2f6f9f", "#c0504d", "#8a8a8a", "#7a9a3a", "#8064a2"]


def die(text):
    sys.exit(text)


def need(*tools):
    for tool in tools:
        shutil.which(tool) or die(f"{tool} is missing. Install it with: scripts/install-test-tools")


def setting(name, default):
    """A number from the environment."""
    return type(default)(os.environ.get(name) or default)


# Labels of binaries, since several builds of a program may be compared.
LABELS = {}


def servers():
    """Returns Redoubt (or REDOUBT), then the installed servers of BESIDE, from PATH or install-peers.

    An entry `label=path` in BESIDE names a binary and its label.
    """
    ours = os.environ.get("REDOUBT") or os.path.join(ROOT, "target/release/redoubt")
    if not os.environ.get("REDOUBT"):
        subprocess.run([os.path.join(ROOT, "scripts/build")], check=True, stdout=sys.stderr)
    found = [os.path.abspath(shutil.which(ours) or die(f"Server not found: {ours}"))]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    peers = os.environ.get("PEERS") or os.path.join(cache, "redoubt/peers")
    for peer in (os.environ.get("BESIDE") or "redis-server valkey-server").split():
        label, _, named = peer.rpartition("=")
        path = shutil.which(named, path=peers) or shutil.which(named)
        if path:
            found.append(os.path.abspath(path))
            if label:
                LABELS[found[-1]] = label
        elif label:
            die(f"Server not found: {named}")
    return found


def floor():
    """Builds the floor server if necessary and returns its path."""
    subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--locked", "--package", "node", "--example", FLOOR],
        cwd=ROOT, check=True, stdout=sys.stderr,
    )
    return os.path.join(ROOT, "target/release/examples", FLOOR)


def name_of(binary):
    if os.path.basename(binary) == FLOOR:
        return FLOOR
    if binary in LABELS:
        return LABELS[binary]
    return "Redoubt" if os.path.basename(binary).startswith("redoubt") else version_of(binary).split(" sha=")[0]


def version_of(binary):
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    found = re.match(r"(\w+) server v=([\d.]+)", said)
    return f"{found[1]} {found[2]}" if found else said


class Server:
    """A server process with its own directory, pinned to some cores."""

    def __init__(self, binary, cores="0", options=()):
        self.ours = os.path.basename(binary).startswith("redoubt")
        self.folder = tempfile.TemporaryDirectory(prefix="redoubt-bench-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = ["taskset", "-c", cores, binary]
        if os.path.basename(binary) == FLOOR:
            command.append(str(self.port))
        else:
            command += ["server"] if self.ours else []
            command += ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *options]
        with open(os.path.join(self.folder.name, "log"), "wb") as log:
            self.process = subprocess.Popen(command, cwd=self.folder.name, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while True:
            try:
                self.client = Client(self.port)
                if self.client.call("PING") in (b"PONG", b"OK"):
                    return
            except (OSError, RuntimeError):
                # Not listening yet, or still loading.
                pass
            if time.monotonic() > end or self.process.poll() is not None:
                self.stop()
                die(f"{binary} did not start.")
            time.sleep(0.05)

    def resident(self):
        """Resident bytes of the process without its children."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self):
        """CPU time of all current and past threads in nanosecond resolution (clock_getcpuclockid)."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def info(self, section):
        lines = self.client.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def sleep(self):
        """Stops the process with SIGSTOP until it is resumed."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def wake(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Client:
    """A minimal RESP2 client."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb", buffering=1 << 16)

    def call(self, *words):
        self.socket.sendall(encode(*words))
        return self.read()

    def read(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server has gone")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self.file.read(size + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        return rest

    def pour(self, batches, replies_of):
        """Sends batches of requests, each with `replies_of` replies of one line or an id."""
        waiting = 0
        for batch in batches:
            self.socket.sendall(batch)
            waiting += 1
            if waiting > 4:
                self._skip(replies_of)
                waiting -= 1
        for _ in range(waiting):
            self._skip(replies_of)

    def _skip(self, lines):
        for _ in range(lines):
            line = self.file.readline()
            if line[:1] == b"$":
                line = b"+" + self.file.readline()
            if line[:1] not in (b"+", b":"):
                raise RuntimeError(line.decode())


class Timeline:
    """Long time spans recorded by a separate process, each with start and end."""

    WORTH_NOTING = 0.0005
    MOST = 100_000

    def __init__(self, run, *args):
        self.spans = multiprocessing.Array("d", 2 * self.MOST, lock=False)
        self.count = multiprocessing.Value("i", 0, lock=False)
        self.stopped = multiprocessing.Value("b", 0, lock=False)
        self.process = multiprocessing.Process(target=run, args=(self, *args))
        self.process.start()

    def note(self, begin, end):
        if end - begin > self.WORTH_NOTING and self.count.value < self.MOST:
            self.spans[2 * self.count.value], self.spans[2 * self.count.value + 1] = begin, end
            self.count.value += 1

    def since(self, start):
        """The recorded spans that ended after `start`, in order."""
        noted = [(self.spans[2 * i], self.spans[2 * i + 1]) for i in range(self.count.value)]
        return [span for span in noted if span[1] > start]

    def stop(self):
        self.stopped.value = 1
        self.process.join(10)
        self.process.kill()


class Pauses:
    """Stalls of the machine: a process of the highest priority on each core sleeps and records late wake-ups, which are
    caused by the hypervisor or the kernel."""

    REST = 0.0005

    def __init__(self):
        self.cores = [Timeline(self._run, core) for core in sorted(os.sched_getaffinity(0))]

    def _run(self, timeline, core):
        os.sched_setaffinity(0, {core})
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
        except PermissionError:
            os._exit(0)
        gc.disable()
        while not timeline.stopped.value:
            before = time.perf_counter()
            time.sleep(self.REST)
            timeline.note(before + self.REST, time.perf_counter())

    def longest_without(self, waits, start):
        """The longest of `waits` in milliseconds, excluding stalls of any core."""
        away = sorted(span for core in self.cores for span in core.since(start))
        longest = 0
        for begin, end in waits:
            left, reached = end - begin, begin
            for gone, back in away:
                lost = min(back, end) - max(gone, reached)
                if lost > 0:
                    left, reached = left - lost, min(back, end)
            longest = max(longest, left)
        return longest * 1000

    def stop(self):
        for core in self.cores:
            core.stop()


class Prober:
    """A process that sends requests one by one and records long waits.

    It rests for a moment after each answer. Without that it would take a core, and on a machine with two what it
    measures would be how three busy processes share them.
    """

    REST = 0.0003

    def __init__(self, server, ask):
        self.waits = Timeline(self._run, server.port, ask)

    def _run(self, timeline, port, ask):
        try:
            # It must not be delayed by the load that it measures.
            os.nice(-10)
        except PermissionError:
            pass
        # Nor by the garbage collector.
        gc.disable()
        client = Client(port)
        while not timeline.stopped.value:
            request = ask()
            begin = time.perf_counter()
            client.socket.sendall(request)
            client.read()
            timeline.note(begin, time.perf_counter())
            time.sleep(self.REST)

    def waits_since(self, start):
        return self.waits.since(start)

    def longest_since(self, start):
        """The longest wait since `start`, in milliseconds."""
        return max((end - begin for begin, end in self.waits.since(start)), default=0) * 1000

    def stop(self):
        self.waits.stop()


def encode(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def batches(count, request, size=500):
    """Yields joined requests of `size` numbers each, from 0 to `count`, a multiple of `size`."""
    assert count % size == 0
    for start in range(0, count, size):
        yield b"".join(request(number) for number in range(start, start + size))


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def processor_time():
    """Busy time and steal time of all cores since boot, in ticks."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, file.readline().split()[1:9])
    return user + nice + system + irq + softirq + stolen, stolen


BEFORE = processor_time()


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    load = os.getloadavg()[0]
    wanted, stolen = (now - before for now, before in zip(processor_time(), BEFORE))
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()} {platform.release()}; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, final load average {load:.1f}, "
        f"steal time {100 * stolen / max(wanted, 1):.0f} %"
    )


def table(head, rows):
    widths = [max(len(str(row[index])) for row in [head, *rows]) for index in range(len(head))]
    line = lambda row: "| " + " | ".join(
        str(cell).ljust(width) if index == 0 else str(cell).rjust(width)
        for index, (cell, width) in enumerate(zip(row, widths))
    ) + " |"
    rule = "| " + " | ".join("-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)) + " |"
    return "\n".join([line(head), rule, *map(line, rows)])


def report(name, title, text, head, rows, chart_unit, chart_rows):
    """Prints a table, and with RECORD=1 writes it with its chart into docs/BENCHMARKS.md.

    `chart_rows` are (label, [(series, value)]).
    """
    shown = table(head, rows)
    print(f"\n{title}\n{machine()}\n\n{shown}\n\n{text}")
    if not os.environ.get("RECORD"):
        return
    os.makedirs(os.path.join(ROOT, "docs/charts"), exist_ok=True)
    with open(os.path.join(ROOT, "docs/charts", f"{name}.svg"), "w") as file:
        file.write(svg(title, chart_unit, chart_rows))
    path = os.path.join(ROOT, "docs/BENCHMARKS.md")
    try:
        with open(path) as file:
            page = file.read()
    except FileNotFoundError:
        page = "# Benchmarks\n\nEach section is written by the command that it names, with RECORD=1.\n"
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    section = f"{begin}\n## {title}\n\n{machine()}\n\n{text}\n\n{shown}\n\n![{title}](charts/{name}.svg)\n{end}\n"
    if begin in page:
        page = page[: page.index(begin)] + section + page[page.index(end) + len(end) + 1 :]
    else:
        page = page.rstrip("\n") + "\n\n" + section
    with open(path, "w") as file:
        file.write(page)
    print(f"\nWritten to docs/BENCHMARKS.md and docs/charts/{name}.svg")


def svg(title, unit, rows):
    """Draws horizontal bars, one group per row."""
    left, width, bar, gap = 250, 480, 14, 12
    series = []
    for _, values in rows:
        series += [name for name, _ in values if name not in series]
    most = max(value for _, values in rows for _, value in values) or 1
    parts, y = [], 60
    for index, name in enumerate(series):
        x = left + index * 150
        parts.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{COLOURS[index % 5]}"/>')
        parts.append(f'<text x="{x + 16}" y="44">{escape(name)}</text>')
    for label, values in rows:
        parts.append(f'<text x="{left - 8}" y="{y + len(values) * bar / 2 + 4:.0f}" text-anchor="end">{escape(label)}</text>')
        for name, value in values:
            colour, long = COLOURS[series.index(name) % 5], max(1, value / most * width)
            parts.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{bar - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{left + long + 5:.1f}" y="{y + 10}">{value:.4g}</text>')
            y += bar
        y += gap
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{y + 8}" '
        'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="10" y="20" font-size="14">{escape(title)} ({escape(unit)})</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
