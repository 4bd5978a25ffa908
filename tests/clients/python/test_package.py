"""The test kit's Python package: built as for publication, installed from the archive, with complete metadata."""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = "import sys; from setuptools import build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive, and the wheel built from it."""
    out = tmp_path_factory.mktemp("built")
    # Build a copy, because builds create folders beside the sources.
    source = shutil.copytree(ROOT / "testkit/python", out / "source", ignore=shutil.ignore_patterns("__pycache__"))

    def build(kind, folder):
        subprocess.run([sys.executable, "-c", BUILD, kind, str(out)], cwd=folder, check=True, capture_output=True)

    build("build_sdist", source)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "unpacked")
    (unpacked,) = (out / "unpacked").iterdir()
    build("build_wheel", unpacked)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def test_package_has_description_and_licence(built):
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = email.message_from_bytes(archive.read(metadata))
        licences = [archive.read(name).decode() for name in names if name.endswith("/licenses/LICENSE")]
    assert (said["Name"], said["License-Expression"]) == ("redoubt-testkit", "Apache-2.0")
    assert licences == [(ROOT / "LICENSE").read_text()]
    assert said["Description-Content-Type"] == "text/markdown" and "## Versions" in said.get_payload()
    assert said["Requires-Python"] and said["Summary"] and said["Keywords"]
    # The test kit has no dependencies.
    assert said.get_all("Requires-Dist") is None


def test_installed_package_provides_fixtures(built, tmp_path):
    _, wheel = built
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([sys.executable, *install, "--target", str(tmp_path), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("PYTEST_ADDOPTS", None)
    # In a separate folder, without the settings with which these tests find the sources.
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "--collect-only", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )
    for fixture in ["redoubt_server", "redoubt_cluster", "redoubt_sentinel"]:
        assert fixture in listed.stdout, listed.stdout + listed.stderr
