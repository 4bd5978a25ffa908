"""The judge (docs/judge.md) on redis-py: the whole card, twice with the same seed."""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
ADAPTER = ROOT / "crates" / "client-conformance" / "adapters" / "redis_py.py"
# Most of a scenario is waiting, so many are played at once.
JOBS = "8"


def card(tmp_path, name):
    file = tmp_path / f"{name}.json"
    judge = pathlib.Path(os.environ["REDOUBT"]).parent / "redoubt-test"
    command = [judge, "judge", "--jobs", JOBS, "--seed", "3", "--json", file, "--", sys.executable, ADAPTER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # Not all of it is good, which is no failure of the judge.
    assert done.returncode in (0, 1), done.stderr
    return json.loads(file.read_text())


def verdict(case):
    """The reasons of a verdict, but for costs, which depend on when threads run, and without figures."""
    is_kept = lambda finding: finding["grade"] != "costly" or finding["text"].startswith("hides")
    texts = [f"{finding['grade']}: {finding['text']}" for finding in case["findings"] if is_kept(finding)]
    return sorted(re.sub(r"\d+", "N", text) for text in texts)


def evidence(case):
    lines = (f"{e['ms']:>6} ms {e['node']}#{e['connection']} {e['what']} {e.get('text', '')}" for e in case["log"])
    return "\n".join([f"{case['name']}: {verdict(case)}", *lines, case["complaints"]])


def test_the_same_seed_gives_the_same_verdicts_on_the_whole_card(tmp_path):
    first, second = card(tmp_path, "first"), card(tmp_path, "second")
    pairs = list(zip(first["cases"], second["cases"], strict=True))
    different = [evidence(case) for pair in pairs if verdict(pair[0]) != verdict(pair[1]) for case in pair]
    assert not different, "\n\n".join(different)
    assert first["library"]["library"] == "redis-py"
    verdicts = {case["name"]: verdict(case) for case in first["cases"]}
    # What the judge is for: it has the library run a command once more by itself, and says so.
    assert "executes twice: INCR" in " ".join(verdicts["reply-lost"])
    assert verdicts["moved-once"] == []
