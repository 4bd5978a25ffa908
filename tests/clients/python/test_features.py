"""What redis-py offers, in every mode and both protocols; each feature of each is a cell of the table in docs/clients.md."""

import json
import os
import pathlib
import subprocess
import threading
import traceback

import pytest
import redis

from conftest import ROOT
from features import KILLED, PLAIN, Attempt
from modes import MODES, Mode
from waiting import wait_until_replicated

# For all features together, on a slow machine.
TIMEOUT = 90


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run([ROOT / "scripts" / "make-certificates", folder], check=True, timeout=60, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module", params=MODES)
def mode(request, redoubt_kit, certificates):
    with Mode(request.param, redoubt_kit, certificates) as mode:
        yield mode


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def protocol(request):
    return request.param


def note(mode, protocol, feature, result):
    """A line for scripts/clients-page, if it asks for one."""
    folder = os.environ.get("CLIENTS_TABLE")
    if not folder:
        return
    client = f"redis-py {redis.__version__}"
    cell = {"client": client, "mode": mode, "protocol": protocol, "feature": feature, "result": result}
    with open(pathlib.Path(folder) / "redis-py.jsonl", "a", encoding="utf-8") as out:
        out.write(json.dumps(cell) + "\n")


@pytest.mark.parametrize("feature", PLAIN)
def test_a_feature(feature, mode, protocol):
    result = "failed"
    try:
        with Attempt(mode, protocol) as attempt:
            result = PLAIN[feature](attempt) or "yes"
    finally:
        note(mode.name, protocol, feature, result)
    if result != "yes":
        pytest.skip(result)


@pytest.mark.timeout(400)
def test_features_with_their_master_killed_in_the_middle(mode, protocol):
    """The last one: all at the same time, so that one death is in the middle of each."""
    if mode.name == "standalone":
        pytest.skip("not meant: one server")
    if protocol == 2:
        pytest.skip("a death is the same in both protocols")
    run = KilledRun(mode, protocol)
    run.to_the_middle()
    dead = [(place, mode.master_of_tag(place)) for place in mode.places]
    try:
        for place, master in dead:
            wait_until_replicated(place.ports[master])
            place.kill(master)
        run.to_the_end()
    finally:
        run.bring_back(dead)
    for feature, result in run.results.items():
        result = "failed" if feature in run.failures else result
        note(f"{mode.name}, master killed", protocol, feature, result)
    assert not run.failures, "\n".join(f"{feature}: {failure}" for feature, failure in run.failures.items())


class KilledRun:
    """All of KILLED at once, each in a thread; they wait for each other in the middle."""

    def __init__(self, mode, protocol):
        self.mode, self.protocol = mode, protocol
        self.results = dict.fromkeys(KILLED, "failed")
        self.failures = {}
        self._changed = threading.Condition()
        self._on_the_way, self._in_the_middle = set(KILLED), set()
        self._killed = threading.Event()
        for feature in KILLED:
            threading.Thread(target=self._attempt, args=[feature], daemon=True).start()

    def _attempt(self, feature):
        try:
            with Attempt(self.mode, self.protocol, kill=lambda: self._await_the_kill(feature)) as attempt:
                self.results[feature] = KILLED[feature](attempt) or "yes"
            assert self.results[feature] != "yes" or feature in self._in_the_middle, "it never came to its middle"
        except BaseException:  # shown by the test itself
            self.failures[feature] = traceback.format_exc()
        with self._changed:
            self._on_the_way.discard(feature)
            self._in_the_middle.discard(feature)
            self._changed.notify()

    def _await_the_kill(self, feature):
        with self._changed:
            self._on_the_way.discard(feature)
            self._in_the_middle.add(feature)
            self._changed.notify()
        assert self._killed.wait(2 * TIMEOUT), "nobody killed the master"

    def to_the_middle(self):
        """Until each feature waits there, or has ended without it."""
        self._wait(self._on_the_way)

    def to_the_end(self):
        self._killed.set()
        self._wait(self._in_the_middle)

    def _wait(self, those):
        """Until there are none; who takes too long has failed, and is waited for no longer."""
        with self._changed:
            self._changed.wait_for(lambda: not those, TIMEOUT)
            self.failures.update(dict.fromkeys(those, f"still under way after {TIMEOUT} s"))

    def bring_back(self, dead):
        """The failover's own end: the dead are replicas of their successors."""
        for place, master in dead:
            if place.nodes()[master]["pid"] is None:
                place.restart(master)
            place.wait_until_whole()
            if place.nodes()[master]["role"] != "replica":
                self.failures["the end"] = "the dead one is no replica"
