"""The numbers and pictures of docs/luts.md are those of the tables that ship."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qcore.lut.functions import FUNCTIONS

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "luts.md"
MOST_BYTES = 60_000

pytestmark = pytest.mark.skipif(not DOCUMENT.is_file(), reason="needs a source tree")


def test_errors_are_the_tables_own():
    script = ROOT / "scripts" / "lut_accuracy.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_table_has_a_small_picture():
    shown = set(re.findall(r"\(images/lut/([\w./]+)\)", DOCUMENT.read_text(encoding="utf-8")))
    reduced = {name for name, function in FUNCTIONS.items() if function.reduction}
    expected = {"scheme.svg", *(f"{name}.png" for name in FUNCTIONS if name not in reduced)}
    expected |= {f"{folder}/{name}.png" for folder in ("reduced", "plain") for name in reduced}
    assert shown == expected
    for name in shown:
        assert (DOCUMENT.parent / "images" / "lut" / name).stat().st_size < MOST_BYTES


def test_worked_example():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from lut_accuracy import published_silu
    finally:
        sys.path.pop(0)
    silu = published_silu()
    cuts, values = silu.cuts, silu.values
    x = np.float32(-2.5)
    scale = np.float32(32) / (cuts[3] - cuts[2])
    p = (x - cuts[2]) * scale
    assert (f"{scale:.5f}", f"{p:.2f}", 33 + int(p)) == ("5.00657", "29.37", 62)
    assert [f"{value:.4f}" for value in values[62:64]] == ["-0.1823", "-0.2021"]
    assert f"{silu(np.array([x]))[0]:.5f}" == "-0.18970"
    assert f"{-2.5 / (1 + np.exp(2.5)):.5f}" == "-0.18965"
    ends = [float(cuts[2] + j * (cuts[3] - cuts[2]) / 32) for j in (29, 30)]
    assert [f"{end:.4f}" for end in ends] == ["-2.5748", "-2.3751"]
