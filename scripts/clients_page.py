"""Generates the feature tables of docs/clients.md from the result files that the client tests wrote into a folder."""

import json
import pathlib
import sys

MODES = ["standalone", "sentinel", "cluster"]
# Suffix of a mode's name in the tests that kill a master.
KILLED = ", master killed"
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
    "ACL",
    "TLS",
]

HEAD = """## Features

Results of the tests in `tests/clients` with Redoubt. A number is the protocol with which a feature works: 2 for RESP2, 3 for RESP3. A letter refers to a reason below the tables. An empty cell means that
the library does not support the protocol, or that the feature does not apply in that mode.

- pipelines: a hundred writes with one hash tag; cluster pipelines: two hundred writes to many slots
- transactions: a transaction fails if another client changes a watched key, and succeeds when it is repeated
- client-side caching: a cached value is dropped when another client changes it
- reading from replicas: a written value is read from a replica
- reconnection: the server closes all connections, and the client continues
- ACL: a user with a password and few permissions
- TLS: with sentinels, replication and monitoring use TLS, too
"""

HEAD_OF_KILLED = """### Master killed during the test

These tests cover features without a failure scenario above. During each test, the master of its keys gets SIGKILL; it is restarted as a replica
after the test. Failed operations are retried; nothing else helps the client. All features run at the same time, with the newest
protocol that the library supports.

- pipelines, transactions, ACL, TLS: started before the kill and completed on the new master; a transaction fails if
  another client changes a watched key after the kill
- scan iterators: an iterator started before the kill finds every key or fails, and a new one finds every key
"""


def main(folder):
    cells = {}
    for path in sorted(pathlib.Path(folder).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            cell = json.loads(line)
            # A retried test has several lines; the last one counts.
            cells[cell["client"], cell["mode"], cell["feature"], cell["protocol"]] = cell["result"]
    reasons = []
    print(HEAD)
    table(cells, reasons)
    print()
    print(HEAD_OF_KILLED)
    table(cells, reasons, KILLED)
    print()
    print("### Reasons")
    print()
    for number, reason in enumerate(reasons):
        print(f"- {letter(number)}: {reason}")


def table(cells, reasons, condition=""):
    clients = sorted({client for client, *_ in cells}, key=str.lower)
    print("| feature | mode | " + " | ".join(clients) + " |")
    print("| --- | --- |" + " --- |" * len(clients))
    for feature in FEATURES:
        for mode in MODES:
            row = [text(cells, client, mode + condition, feature, reasons) for client in clients]
            if any(row):
                print(f"| {feature} | {mode} | " + " | ".join(row) + " |")


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
