"""Makes the tables of features in docs/clients.md of the lines that the client libraries' tests wrote into a folder."""

import json
import pathlib
import sys

MODES = ["standalone", "sentinel", "cluster"]
# What a mode is called while a master is killed in it.
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

What the tests in `tests/clients` found with each library on Redoubt. A number is the protocol with which a feature works: 2 for RESP2, 3 for RESP3. A letter leads to a reason below the tables; an empty cell means that
the library cannot speak that protocol at all, or that the feature means nothing in that mode.

- pipelines: a hundred writes at once, with one hash tag; cluster pipelines: two hundred over all slots
- transactions: one whose watched key another client changes is not run; begun anew it is
- client-side caching: a value that the library keeps is dropped when another client changes it
- reading from replicas: what was written is read from a replica
- reconnection: all connections are ended by the server, and the client goes on
- ACL: a user with a password and few rights
- TLS: under sentinels the servers replicate, and are watched, over TLS too
"""

HEAD_OF_KILLED = """### With the master killed in the middle

What the judge has no scenarios for. Each feature begins, and in its middle the master that has its keys gets SIGKILL;
nobody starts it again before the feature has ended, and then it comes back as a replica. An operation that fails is tried
again, and nothing else is done for the client. All features run at the same time, so that all have the same death, with
the newest protocol that the library speaks.

- pipelines, transactions, ACL, TLS: begun before, and run at the successor; a transaction whose watched key another client
  changes after the kill is not run
- scan iterators: one begun before goes on and finds every key, or fails, and one begun anew finds every key
"""


def main(folder):
    cells = {}
    for path in sorted(pathlib.Path(folder).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            cell = json.loads(line)
            # A test that was tried again has two lines: the last one holds.
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
