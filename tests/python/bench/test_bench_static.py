"""`python -m benchmarks static`: what it writes, draws and refuses, and that each peer computes the same."""

import json

import numpy as np
import pytest
import static_calls
from benchmarks.__main__ import main
from benchmarks.implementation import OURS
from benchmarks.results import load
from benchmarks.static.problem import Codes, Layer
from benchmarks.static.workloads import Selection, workloads

import qcore

SMALL = (
    Layer((1, 16, 8, 8), (24, 16, 3, 3), padding=1),
    Layer((2, 20, 9, 9), (20, 1, 3, 3), stride=2, padding=1, groups=20),
    Layer((1, 12, 5, 5), (18, 4, 1, 1), groups=3),
    Layer((2, 12, 5, 6), (18, 12, 1, 1)),
)
NAMES = ["1x16x8x8 w24x16x3x3 s1", "2x20x9x9 w20x1x3x3 s2 g20", "1x12x5x5 w18x4x1x1 s1 g3", "2x12x5x6 w18x12x1x1 s1"]
OPTIONS = ["--no-peers", "--samples", "2", "--wait", "0", "--threads", "2"]
FORMS = {f"qcore {memory}{out}" for memory in ("channels_last", "nchw") for out in ("", " out=")}


@pytest.fixture(autouse=True)
def small_layers(monkeypatch):
    monkeypatch.setattr("benchmarks.static.command.LAYERS", SMALL)


@pytest.fixture
def measured(tmp_path):
    file = tmp_path / "static.json"
    assert main(["static", *OPTIONS, "--json", str(file)]) == 0
    return file


def test_everything_is_in_the_file(measured):
    document = json.loads(measured.read_text(encoding="utf-8"))
    assert document["operator"] == "static"
    assert document["machine"]["threads"] == 2
    assert document["unfinished"] == []
    assert [case["name"] for case in document["cases"]] == NAMES
    assert [case["operations"] for case in document["cases"]] == [
        2 * 24 * 64 * 144,
        2 * 2 * 20 * 25 * 9,
        2 * 18 * 100,
        2 * 18 * 720,
    ]
    for case in load(measured).cases:
        assert {row.name for row in case.rows} == FORMS | ({"qcore QLinear"} if case.name == NAMES[3] else set())
        for row in case.rows:
            assert row.same_as_reference is True
            assert row.error == 0
            assert row.gops == pytest.approx(case.operations / row.milliseconds * 1e-6)
            assert row.kernel in {kernel.name for kernel in qcore.kernels("static")}


def test_patterns_select(tmp_path):
    file = tmp_path / "some.json"
    assert main(["static", *OPTIONS, "--cases", "g20", "--ours", "nchw$", "--json", str(file)]) == 0
    (case,) = load(file).cases
    assert (case.name, [row.name for row in case.rows]) == (NAMES[1], ["qcore nchw"])


def test_another_result_than_the_reference_kernel_is_a_failure(monkeypatch, capsys):
    from benchmarks.static import qcore_impl

    monkeypatch.setattr(qcore_impl, "_same_as_reference", lambda *_: False)
    assert main(["static", *OPTIONS, "--cases", "g3"]) == 1
    assert "reference kernel" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # torch announces its plans for quantization
@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_everybody_computes_the_same(layer):
    """Check the libraries that are installed."""
    (workload,) = workloads(Selection(layers=(layer,)))
    inputs = workload.inputs(workload.case_names[0])
    seen = set()
    for contender in workload.implementations():
        bound = contender.build().bind(inputs.data)
        bound.run(0)
        error = inputs.error(bound.result())
        assert error == 0 if contender.library == OURS else error <= 5, contender.name
        if bound.same_as_reference:
            assert bound.same_as_reference()
        seen.add(contender.library)
    assert OURS in seen


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_the_truth_is_the_oracle(layer):
    codes = Codes(layer)
    window = {"stride": layer.stride, "padding": layer.padding, "groups": layer.groups}
    wanted = static_calls.conv2d(codes.x, *codes.parts, **window)
    np.testing.assert_array_equal(codes.truth, wanted)
    assert len(np.unique(wanted)) > 50


def test_wrong_results_are_not_timed():
    codes = Codes(SMALL[0])
    assert codes.error(codes.truth.astype(np.uint8)) == 0
    with pytest.raises(qcore.QcoreValueError, match="bench: a result's codes are 6 from the exact ones on average"):
        codes.error(codes.truth + 6)
    with pytest.raises(qcore.QcoreValueError, match=r"bench: a result has shape \[24\]"):
        codes.error(np.zeros(24))
