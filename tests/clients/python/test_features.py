"""Tests redis-py's features in every mode and both protocols; each feature is a cell of docs/clients.md."""

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

# The time limit in seconds for all features together, on a slow machine.
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
    """Writes a line for scripts/clients-page, if it requested them."""
    folder = os.environ.get("CLIENTS_TABLE")
    if not folder:
        return
    client = f"redis-py {redis.__version__}"
    cell = {"client": client, "mode": mode, "protocol": protocol, "feature": feature, "result": result}
    with open(pathlib.Path(folder) / "redis-py.jsonl", "a", encoding="utf-8") as out:
        out.write(json.dumps(cell) + "\n")


@pytest.mark.parametrize("feature", PLAIN)
def test_feature(feature, mode, protocol):
    result = "failed"
    try:
        with Attempt(mode, protocol) as attempt:
            result = PLAIN[feature](attempt) or "yes"
    finally:
        note(mode.name, protocol, feature, result)
    if result != "yes":
        pytest.skip(result)


@pytest.mark.timeout(400)
def test_features_with_killed_master(mode, protocol):
    """Runs all features concurrently, so that one kill happens in the middle of each."""
    if mode.name == "standalone":
        pytest.skip("one server has no failover")
    if protocol == 2:
        pytest.skip("failover does not depend on the protocol")
    run = KilledRun(mode, protocol)
    run.wait_for_middle()
    dead = [(place, mode.master_of_tag(place)) for place in mode.places]
    try:
        for place, master in dead:
            wait_until_replicated(place.ports[master])
            place.kill(master)
        run.continue_after_kill()
    finally:
        run.restart_masters(dead)
    for feature, result in run.results.items():
        result = "failed" if feature in run.failures else result
        note(f"{mode.name}, master killed", protocol, feature, result)
    assert not run.failures, "\n".join(f"{feature}: {failure}" for feature, failure in run.failures.items())


class KilledRun:
    """Runs all of KILLED at once, each in a thread; they wait for each other in the middle."""

    def __init__(self, mode, protocol):
        self.mode, self.protocol = mode, protocol
        self.results = dict.fromkeys(KILLED, "failed")
        self.failures = {}
        self._changed = threading.Condition()
        self._before_middle, self._after_middle = set(KILLED), set()
        self._killed = threading.Event()
        for feature in KILLED:
            threading.Thread(target=self._attempt, args=[feature], daemon=True).start()

    def _attempt(self, feature):
        try:
            with Attempt(self.mode, self.protocol, kill=lambda: self._await_the_kill(feature)) as attempt:
                self.results[feature] = KILLED[feature](attempt) or "yes"
            assert self.results[feature] != "yes" or feature in self._after_middle, "it never reached its middle"
        except BaseException:  # shown by the test itself
            self.failures[feature] = traceback.format_exc()
        with self._changed:
            self._before_middle.discard(feature)
            self._after_middle.discard(feature)
            self._changed.notify()

    def _await_the_kill(self, feature):
        with self._changed:
            self._before_middle.discard(feature)
            self._after_middle.add(feature)
            self._changed.notify()
        assert self._killed.wait(2 * TIMEOUT), "the master was not killed"

    def wait_for_middle(self):
        """Waits until each feature has reached its middle or has ended."""
        self._wait(self._before_middle)

    def continue_after_kill(self):
        self._killed.set()
        self._wait(self._after_middle)

    def _wait(self, running):
        """Waits until `running` is empty; features that exceed the timeout have failed."""
        with self._changed:
            self._changed.wait_for(lambda: not running, TIMEOUT)
            self.failures.update(dict.fromkeys(running, f"still running after {TIMEOUT} s"))

    def restart_masters(self, dead):
        """Restarts the killed masters and checks that they become replicas of their successors."""
        for place, master in dead:
            if place.nodes()[master]["pid"] is None:
                place.restart(master)
            place.wait_until_whole()
            if place.nodes()[master]["role"] != "replica":
                self.failures["restart"] = "the restarted master is not a replica"
