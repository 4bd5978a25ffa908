"""The command line of the client conformance tests (docs/judge.md), with correct and faulty clients."""

import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLIENT = ROOT / "crates" / "client-conformance" / "tests" / "adapters" / "planted.py"
# Test clients: a correct one, and ones with a fault that the scenario detects.
SCENARIO = "reply-lost"
GOOD, HARMFUL = "", "executes-twice"


def redoubt():
    return pathlib.Path(os.environ["REDOUBT"])


def run(program, *words):
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=120)


def judge(*options, fault=GOOD):
    adapter = [sys.executable, CLIENT, *filter(None, [fault])]
    return run(redoubt().parent / "redoubt-test", "judge", "--only", SCENARIO, *options, "--", *adapter)


def test_redoubt_binary_finds_redoubt_test_in_its_folder(tmp_path):
    listed = run(redoubt(), "judge", "--list")
    assert listed.returncode == 0 and f"{SCENARIO} (" in listed.stdout, listed.stderr
    for task in ("chaos", "testkit"):
        assert run(redoubt(), task, "--help").returncode == 0
    # If it is missing, the error says how to install it.
    alone = tmp_path / "redoubt"
    alone.symlink_to(redoubt())
    copy = tmp_path / "copy"
    copy.write_bytes(redoubt().read_bytes())
    copy.chmod(0o755)
    assert run(alone, "judge", "--list").returncode == 0, "a link is not another place"
    for task in ("judge", "chaos", "testkit"):
        done = run(copy, task)
        assert done.returncode == 1 and "cargo build --package redoubt-test" in done.stderr, done.stderr


def test_exit_status_shows_failed_scenarios():
    assert judge().returncode == 0
    guilty = judge(fault=HARMFUL)
    assert guilty.returncode == 1 and "executes twice: INCR" in guilty.stdout
    for option in ("--server", "--baseline"):
        assert judge(option, "/nowhere").returncode == 2
    for only, adapter, words in ((SCENARIO, "/nowhere", "cannot be started"), ("none", "true", "there is no scenario none")):
        nothing = run(redoubt().parent / "redoubt-test", "judge", "--only", only, "--", adapter)
        assert nothing.returncode == 2 and words in nothing.stderr


def test_listed_scenarios_can_be_selected():
    listed = run(redoubt(), "judge", "--list", "--only", "sentinels,tls").stdout
    names = [line.split(" (")[0] for line in listed.splitlines() if line and not line.startswith(" ")]
    assert {"sentinel-is-stale", "certificate-is-renewed"} <= set(names), names
    assert SCENARIO not in names


def asked(file):
    case, = json.loads(file.read_text())["cases"]
    return [entry["text"] for entry in case["log"] if entry["what"] == "step"]


def test_keys_depend_on_seed(tmp_path):
    files = [tmp_path / name for name in ("first", "second", "other")]
    for file, seed in zip(files, (5, 5, 6), strict=True):
        judge("--seed", seed, "--json", file)
    first, second, other = map(asked, files)
    assert first == second != other


def test_report_is_available_in_each_format(tmp_path):
    done = judge(
        "--json", tmp_path / "json", "--junit", tmp_path / "junit", "--html", tmp_path / "html", "--evidence", fault=HARMFUL
    )
    assert "--- reply-lost (HARMFUL)" in done.stdout
    assert json.loads((tmp_path / "json").read_text())["library"]["library"] == "planted"
    suite = xml.etree.ElementTree.parse(tmp_path / "junit").getroot()
    assert suite.get("failures") == "1" and "executes twice" in suite.find("testcase/failure").get("message")
    assert "executes twice: INCR" in (tmp_path / "html").read_text()


def test_baseline_shows_regressions(tmp_path):
    card = tmp_path / "card"
    judge("--json", card, fault=HARMFUL)
    again = judge("--baseline", card, fault=HARMFUL)
    assert again.returncode == 0 and "worse:" not in again.stdout, "as bad as it was"
    judge("--json", card)
    worse = judge("--baseline", card, fault=HARMFUL)
    assert worse.returncode == 1 and "worse: reply-lost: HARMFUL, was good" in worse.stdout


@pytest.mark.parametrize("mode", ["cluster", "sentinels"])
def test_server_program_can_be_selected(mode, tmp_path):
    scenario, program = {"cluster": "moved-once", "sentinels": "sentinel-master-is-demoted"}[mode], redoubt()
    options = ["--server", program, *(["--sentinel", program] if mode == "sentinels" else [])]
    card = tmp_path / "card"
    done = run(program, "judge", "--only", scenario, *options, "--json", card, "--", sys.executable, CLIENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert program.name in json.loads(card.read_text())["servers"]
