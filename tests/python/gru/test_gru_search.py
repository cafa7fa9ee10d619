"""The search for widths: what it finds on case B, what fits the budget, what it says."""

import dataclasses
import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import qcore
from qcore.gru import Calibrator, Config, Direction, GruWeights, Search

ACCURACY = Path(__file__).resolve().parents[3] / "scripts" / "gru_accuracy.py"


def case_b():
    """Make the problem of scripts/gru_accuracy.py with fewer rows."""
    if not ACCURACY.is_file():
        pytest.skip("needs a source tree")
    spec = importlib.util.spec_from_file_location("gru_accuracy", ACCURACY)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    weights, inputs = script.case_b(np.random.default_rng(0))
    return weights, inputs()[:, :4], inputs()[:, :4]


def small(*, batch_first=False, directions=1):
    rng = np.random.default_rng(0)

    def direction(inputs):
        return Direction(rng.normal(0, 0.5, (18, inputs)), rng.normal(0, 0.4, (18, 6)), None, rng.normal(0, 0.2, 18))

    layers = [[direction(c) for _ in range(directions)] for c in (4, 6 * directions)]
    x = rng.normal(0, 1, (20, 5, 4))
    x = x.transpose(1, 0, 2) if batch_first else x
    return Calibrator(GruWeights(layers, batch_first=batch_first)).observe(x), x


def errors(search, number):
    return {trial.tensor: trial.error / search.tried[0].error for trial in search.tried if trial.round == number}


# The size of 8 bits with the state of one row, and what 16 bits of h add to it.
CASE_B_SIZE = 2 * 3 * 256 * 256 + 2 * 2 * 3 * 256 + 256


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
def test_on_case_b_widening_h_pays(pipeline):
    """By itself: of all single widenings only that of h lowers the error by much."""
    weights, seen, tested = case_b()
    search = Calibrator(weights).observe(seen).search(
        CASE_B_SIZE + 256, tested, config=Config(pipeline=pipeline), state_rows=1, target=2e-7
    )  # fmt: skip
    assert search.config == Config(pipeline=pipeline, widths={"h": 16})
    assert search.size == CASE_B_SIZE + 256
    first = errors(search, 1)
    assert set(first) == {"x", "h", "z", "r", "g"}  # weights and biases don't fit
    assert first.pop("h") < 0.2
    assert min(first.values()) > 0.75


def test_without_room_for_the_state_h_stays_narrow():
    weights, seen, tested = case_b()
    search = Calibrator(weights).observe(seen).search(CASE_B_SIZE, tested, state_rows=1)
    assert "h" not in search.config.widths and search.size == CASE_B_SIZE
    assert search.error > 0.7 * search.tried[0].error


def test_what_is_chosen_was_measured_and_pays():
    calibrator, x = small()
    search = calibrator.search(10**6)
    assert search.tried[0].widths == {} and search.tried[0].chosen and search.tried[0].round == 0
    chosen = [trial for trial in search.tried if trial.chosen]
    assert len(chosen) > 1
    last = chosen[-1]
    assert (last.widths, last.error, last.size) == (search.config.widths, search.error, search.size)
    for before, after in itertools.pairwise(chosen):
        assert after.error <= 0.9 * before.error or len(after.widths) < len(before.widths)
        # The best of its round.
        assert after.error == min(trial.error for trial in search.tried if trial.round == after.round)
    exact = calibrator.search(10**6, x, least_gain=0.99)
    assert exact.config.widths == {} and len(exact.tried) == 1 + len({trial.tensor for trial in exact.tried[1:]})
    # Measured on the outputs of that config.
    y = calibrator.finish(search.config)(x.astype(np.float32))[0]
    assert search.error == pytest.approx(np.square(y.astype(float) - calibrator.weights._outputs(x, [None])).mean())


def test_budgets():
    calibrator, _ = small()
    weights = 18 * (4 + 6) + 18 * (6 + 6)
    narrow, wide = weights + 2 * 4 * 18, 2 * weights + 4 * 4 * 18
    for budget in (narrow, narrow + 2 * 4 * 18, wide):
        search = calibrator.search(budget)
        assert narrow <= search.size <= budget
        assert all(trial.size <= budget for trial in search.tried)
    assert "weights" in search.config.widths
    with_states = calibrator.search(wide + 5 * 12 * 2, state_rows=5)
    assert with_states.tried[0].size == narrow + 5 * 12
    with pytest.raises(qcore.QcoreValueError, match=f"budget is {narrow - 1} bytes, expected at least the {narrow} of"):
        calibrator.search(narrow - 1)


def test_widths_that_were_given_stay():
    config = Config(widths={"z_pre": 8, "x": 12}, pipeline="fused")
    calibrator, _ = small(directions=2)
    search = calibrator.search(10**6, config=config)
    assert search.tried[0].widths == {"z_pre": 8, "x": 12}
    assert {"z_pre", "x"} <= set(errors(search, 1))
    assert search.config.widths["z_pre"] in (8, 16) and search.config.pipeline == "fused"


def test_batch_first_measures_the_same():
    one, two = small()[0].search(10**6, least_gain=0.5), small(batch_first=True)[0].search(10**6, least_gain=0.5)
    assert one.tried == two.tried


def test_progress_table_and_json():
    calibrator, _ = small()
    calls = []
    search = calibrator.search(10**6, least_gain=0.5, progress=lambda done, most: calls.append((done, most)))
    assert isinstance(search, Search)
    assert [done for done, _ in calls] == list(range(1, len(search.tried) + 1))
    assert all(done <= most for done, most in calls)
    values = json.loads(search.to_json())
    assert Config(**values["config"]) == search.config
    assert values["tried"] == [json.loads(json.dumps(dataclasses.asdict(trial))) for trial in search.tried]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the process
    console.print(search.table())
    text = console.export_text()
    assert "mean squared error" in text and f"{search.tried[0].error:.3e}" in text and "widths within" in text


def test_bad_searches():
    calibrator, x = small()
    for call, words in [
        (lambda: calibrator.search(1.5), "gru search: budget is 1.5, expected a number of bytes"),
        (lambda: calibrator.search(True), "gru search: budget is True"),
        (lambda: calibrator.search(10**6, state_rows=-1), "gru search: state_rows is -1, expected a number of rows"),
        (lambda: calibrator.search(10**6, least_gain=1), "gru search: least_gain is 1, expected a fraction of 1"),
        (lambda: calibrator.search(10**6, target=-1), "gru search: target is -1, expected a mean squared error"),
        (lambda: calibrator.search(10**6, x[:, :, :3]), "x has shape [20, 5, 3], expected [T, B, C] with C = 4"),
        (lambda: Calibrator(calibrator.weights).search(10), "gru search: search() before any observe(x)"),
    ]:
        with pytest.raises(qcore.QcoreValueError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
