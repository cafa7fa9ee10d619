"""scripts/check_sdist.py: what it lets through and what it names."""

import importlib.util
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "check_sdist.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs a source tree")


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Return the script, which looks at a checkout of its own."""
    spec = importlib.util.spec_from_file_location("check_sdist", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path / "checkout"
    (root / "results").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[tool.scikit-build]\nsdist.exclude = ["results"]\n')
    (root / "a.py").write_text("")
    (root / "results" / "r.json").write_text("{}")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", root, *command], check=True)
    monkeypatch.setattr(module, "ROOT", root)
    return module


def archive(path, *names, kind=tarfile.REGTYPE):
    with tarfile.open(path, "w:gz") as made:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = kind
            made.addfile(member, io.BytesIO(b""))
    return path


def test_what_git_tracks_passes(check, tmp_path):
    names = ("q-1/PKG-INFO", "q-1/a.py", "q-1/pyproject.toml")
    assert check.problems(archive(tmp_path / "q-1.tar.gz", *names)) == []


def test_a_stray_file_and_a_missing_one_are_named(check, tmp_path):
    sdist = archive(tmp_path / "q-1.tar.gz", "q-1/PKG-INFO", "q-1/a.py", "q-1/results/r.json")
    assert check.problems(sdist) == [
        "q-1.tar.gz holds results/r.json, which git does not track",
        "q-1.tar.gz lacks pyproject.toml, which git tracks",
    ]


def test_size_is_limited(check, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "MAX_BYTES", 10)
    sdist = archive(tmp_path / "q-1.tar.gz", "q-1/PKG-INFO", "q-1/a.py", "q-1/pyproject.toml")
    assert check.problems(sdist) == [f"q-1.tar.gz has {sdist.stat().st_size} bytes, expected at most 10"]


@pytest.mark.parametrize(
    ("name", "kind"), [("q-1/../x", tarfile.REGTYPE), ("/x", tarfile.REGTYPE), ("q-1/link", tarfile.SYMTYPE)]
)
def test_odd_members_are_refused(check, tmp_path, name, kind):
    with pytest.raises(ValueError, match="expected plain files with relative names"):
        check.members(archive(tmp_path / "q-1.tar.gz", name, kind=kind))


def test_the_command_needs_one_argument():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "check_sdist.py SDIST" in done.stderr
