"""`python -m benchmarks lut`: what it writes, prints and refuses, and that each peer computes the same."""

import json

import numpy as np
import pytest
from benchmarks import libraries
from benchmarks.__main__ import main
from benchmarks.implementation import OURS
from benchmarks.lut import problem as problems
from benchmarks.lut.problem import FUNCTION_NAMES, ITEM_BYTES, Data, Problem
from benchmarks.lut.workloads import Selection, workloads
from benchmarks.results import load

import qcore

SMALL = ["--size", "640", "--no-peers", "--samples", "2", "--wait", "0", "--threads", "2"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "lut.json"
    arguments = ["--function", "silu", "--function", "exp", "--function", "softmax", "--json", str(file)]
    assert main(["lut", *SMALL, *arguments]) == 0
    return file


def test_everything_is_in_the_file(measured):
    document = json.loads(measured.read_text(encoding="utf-8"))
    assert document["operator"] == "lut"
    assert document["machine"]["threads"] == 2
    assert document["unfinished"] == []
    expected = [f"{name} {dtype} 640" for name in ("silu", "exp") for dtype in ("fp32", "fp16", "bf16")]
    expected += [f"softmax {dtype} 1x640" for dtype in ("fp32", "fp16", "bf16")]
    assert [case["name"] for case in document["cases"]] == expected
    for case in document["cases"]:
        assert (case["operations"], case["parameters"]) == (640, {"elements": 640})
        assert case["limits"]["copy"] > 0
        names = {row["name"] for row in case["rows"]}
        reduced = {"qcore out=, no range reduction"} if case["name"].startswith("exp") else set()
        assert names == {"qcore", "qcore out="} | reduced


def test_results_are_right_beside_their_times(measured):
    for case in load(measured).cases:
        for row in case.rows:
            assert row.same_as_reference is True
            assert row.error < (3e-3 if "bf16" in case.name else 6e-4)
            assert row.error_outliers is None
            assert row.weight_bytes == 2 * 640 * ITEM_BYTES[row.activations]
            assert row.gops == pytest.approx(640 / row.milliseconds * 1e-6)
            assert row.read_fraction > 0
            assert row.kernel in {kernel.name for kernel in qcore.kernels()}


def test_patterns_select(tmp_path):
    file = tmp_path / "some.json"
    arguments = ["--function", "exp", "--dtype", "fp16", "--ours", "range", "--size", "8", "--cases", "640$"]
    assert main(["lut", *SMALL, *arguments, "--json", str(file)]) == 0
    (case,) = load(file).cases
    assert (case.name, [row.name for row in case.rows]) == ("exp fp16 640", ["qcore out=, no range reduction"])


def test_another_result_than_the_reference_kernel_is_a_failure(monkeypatch, capsys):
    from benchmarks.lut import qcore_impl

    monkeypatch.setattr(qcore_impl, "_same_as_reference", lambda *_: False)
    assert main(["lut", *SMALL, "--function", "tanh", "--dtype", "fp32"]) == 1
    assert "reference kernel" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("function", FUNCTION_NAMES)
def test_everybody_computes_the_function(function, dtype):
    """Check the libraries that are installed."""
    (workload,) = workloads(Selection(functions=[function], dtypes=[dtype], sizes=[1024]))
    inputs = workload.inputs(workload.case_names[0])
    libraries_seen = set()
    for contender in workload.implementations():
        bound = contender.build().bind(inputs.data)
        bound.run(0)
        error = inputs.error(bound.result())
        if "copy" in contender.name:
            assert error is None
        else:
            assert error < (4e-3 if dtype == "bf16" else 1e-3), contender.name
            libraries_seen.add(contender.library)
    assert OURS in libraries_seen
    assert workload.limits(inputs.name).read.bytes_per_call == 2048 * ITEM_BYTES[dtype]


def test_inputs_are_exact_in_their_dtype():
    for dtype in ITEM_BYTES:
        data = Data(Problem("rms_norm", dtype, 8192))
        assert data.x.shape == (2, 4096)
        for values in (data.x, data.weight):
            stored = values.astype(problems.numpy_dtype(dtype))
            assert np.array_equal(stored.astype(np.float32), values)
        assert np.abs(data.x).max() <= 10


def test_errors_are_relative():
    data = Data(Problem("sigmoid", "fp32", 100))
    exact = 1 / (1 + np.exp(-data.x.astype(np.float64)))
    assert data.error(exact) < 1e-15
    assert data.error(exact * 1.01) == pytest.approx(0.01)
    assert data.error(np.empty(0)) is None


def test_without_torch_numpy_sets_the_limit(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    libraries.torch.cache_clear()
    (workload,) = workloads(Selection(functions=["silu"], dtypes=["fp32"], sizes=[64]))
    assert "numpy" in workload.limits(workload.case_names[0]).read.name
    libraries.torch.cache_clear()


def test_without_ml_dtypes_bf16_is_left_out(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    (workload,) = workloads(Selection(functions=["silu"], dtypes=["bf16"], sizes=[64], peers=None))
    assert workload.implementations() == []
    assert "ml_dtypes" in workload.unavailable[OURS]
