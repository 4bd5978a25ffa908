"""Makes docs/clients.md of the lines that the client libraries' tests wrote into a folder."""

import json
import pathlib
import sys

MODES = ["standalone", "sentinel", "cluster"]
FEATURES = [
    "pipelines",
    "cluster pipelines",
    "transactions",
    "scripts",
    "pub/sub",
    "sharded pub/sub",
    "client-side caching",
    "blocking",
    "scan iterators",
    "reading from replicas",
    "reconnection",
    "failover",
    "ACL",
    "TLS",
]

HEAD = """# Client libraries

What the tests in `tests/clients` found with each library, written by `make clients-page`. A number is the protocol with
which a feature works: 2 for RESP2, 3 for RESP3. A letter leads to a reason below the table; an empty cell means that the
library cannot speak that protocol at all, or that the feature means nothing in that mode.

- pipelines: a hundred writes at once, with one hash tag; cluster pipelines: two hundred over all slots
- client-side caching: a value that the library keeps is dropped when another client changes it
- reading from replicas: what was written is read from a replica
- reconnection: all connections are ended by the server, and the client goes on
- failover: the master is killed, the client writes to its successor; then the dead one comes back as a replica
- ACL: a user with a password and few rights
"""


def main(folder):
    cells = {}
    for path in sorted(pathlib.Path(folder).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            cell = json.loads(line)
            # A test that was tried again has two lines: the last one holds.
            cells[cell["client"], cell["mode"], cell["feature"], cell["protocol"]] = cell["result"]
    clients = sorted({client for client, *_ in cells}, key=str.lower)
    print(HEAD)
    reasons = []
    print("| feature | mode | " + " | ".join(clients) + " |")
    print("| --- | --- |" + " --- |" * len(clients))
    for feature in FEATURES:
        for mode in MODES:
            row = [text(cells, client, mode, feature, reasons) for client in clients]
            if any(row):
                print(f"| {feature} | {mode} | " + " | ".join(row) + " |")
    print()
    for number, reason in enumerate(reasons):
        print(f"- {letter(number)}: {reason}")


def text(cells, client, mode, feature, reasons):
    works, others = [], []
    for protocol in (2, 3):
        result = cells.get((client, mode, feature, protocol))
        if result == "yes":
            works.append(str(protocol))
        elif result is not None and not result.startswith("not meant"):
            if result not in reasons:
                reasons.append(result)
            others.append(letter(reasons.index(result)))
    return ", ".join(works + sorted(set(others)))


def letter(number):
    return chr(ord("a") + number)


main(sys.argv[1])
