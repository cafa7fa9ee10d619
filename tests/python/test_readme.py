"""The README's example works as pasted."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts" / "check_readme.py"


@pytest.mark.skipif(not CHECK.is_file(), reason="needs a source tree")
def test_examples_run_as_pasted():
    done = subprocess.run([sys.executable, str(CHECK)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "block 1 of" in done.stdout
