"""`python -m benchmarks quantize`: every implementation does what is measured, and a wrong result is found."""

import numpy as np
import pytest
from benchmarks.__main__ import main
from benchmarks.implementation import OURS
from benchmarks.quantize import qcore_impl
from benchmarks.quantize.problem import Data, Problem
from benchmarks.quantize.workloads import Selection, workloads


@pytest.mark.parametrize("workload", workloads(Selection(shapes=((40, 192),))), ids=lambda workload: workload.name)
def test_everybody_computes_the_same(workload):
    """Check the libraries that are installed."""
    inputs = workload.inputs(workload.case_names[0])
    bound = {contender.name: contender.build().bind(inputs.data) for contender in workload.implementations()}
    for one in bound.values():
        one.run(0)
    errors = {name: inputs.error(one.result()) for name, one in bound.items()}
    way = workload.problem.way
    if way not in ("rotate", "encode"):
        assert errors[OURS] == inputs.error(bound["numpy expression (1 thread)"].result())
    expected = 1e-6 if way in ("dequantize", "rotate") else {3: 0.15, 4: 0.12, 6: 0.02, 8: 0.007}[workload.problem.bits]
    for name, error in errors.items():
        assert error is None if "copy" in name else 0 < error < expected, name
    checked = way in ("quantize", "encode", "rotate")
    assert (bound[OURS].same_as_reference is not None) is checked
    assert not checked or (bound[OURS].same_as_reference() and bound[OURS].kernel)


def test_moved_bytes():
    assert Problem("quantize", 2, 128, 4).moved_bytes == 256 * 4 + 128 + 4 * 4
    assert Problem("activations", 2, 128, 8).moved_bytes == 256 * 5 + 4 * 12


def test_errors_are_of_the_floats():
    data = Data(Problem("quantize", 20, 128, 8))
    assert data.error(data.x) == 0
    assert data.error(data.x * 1.01) == pytest.approx(0.01, rel=1e-3)
    assert data.error(np.empty(0)) is None


def test_another_result_than_the_reference_kernel_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(qcore_impl, "_same_as_reference", lambda *_: False)
    options = ["--shape", "40x128", "--cases", "^quantize", "--no-peers", "--samples", "2", "--wait", "0"]
    assert main(["quantize", *options]) == 1
    assert "reference kernel" in capsys.readouterr().out
