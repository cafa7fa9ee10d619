"""The command that prints the accuracy bars, and states over very long sequences."""

import sys
from pathlib import Path

import numpy as np
import pytest

from qcore.gru import Calibrator, Config, GruWeights, float_cell

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


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


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
@pytest.mark.parametrize(("bits", "bound"), [(8, 0.05), (16, 1e-3)])
def test_states_do_not_drift(bits, bound, pipeline):
    """After 10,000 steps the state is as close to the float one as after 1,000."""
    c, h, steps = 4, 16, 10_000
    rng = np.random.default_rng(0)
    weights = GruWeights.from_arrays(
        rng.normal(0, 0.5, (3 * h, c)), rng.normal(0, 0.3, (3 * h, h)), rng.normal(0, 0.3, 3 * h)
    )
    x = rng.normal(0, 1, (steps, 2, c)).astype(np.float32)
    exact, _ = float_cell.run(weights.layers[0][0], x)
    q = Calibrator(weights).observe(x[:1000]).finish(Config(bits=bits, pipeline=pipeline))
    y, _ = q(x)

    def error(part):
        return np.sqrt(np.square(y[part] - exact[part]).mean() / np.square(exact[part]).mean())

    early, late = error(slice(0, 1000)), error(slice(9000, None))
    assert early < bound and late < bound, (early, late)
    assert late < 1.25 * early
