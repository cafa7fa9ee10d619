"""The command that prints the accuracy bars."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def script(monkeypatch):
    """scripts/gru_accuracy.py, on its smallest case only."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import gru_accuracy

    monkeypatch.setattr(gru_accuracy, "CASES", {"C": gru_accuracy.case_c})
    monkeypatch.setattr(sys, "argv", ["gru_accuracy.py"])
    return gru_accuracy


def test_bars_are_met(script, capsys):
    assert script.main() == 0
    text = capsys.readouterr().out
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| 0 |")]
    assert len(rows) == 4
    assert all(row[-1] == "yes |" for row in rows)
    assert text.endswith("recommended (method 'mse', pipeline 'fused'): every bar is met\n")


def test_a_missed_bar_is_a_failure(script, capsys, monkeypatch):
    monkeypatch.setitem(script.ERROR_BARS, ("C", 16), 1e-12)
    assert script.main() == 1
    text = capsys.readouterr().out
    assert text.endswith("misses C with 16 bits at seed 0\n")
    assert sum(line.endswith("| no |") for line in text.splitlines()) == 2  # staged and fused
