"""`python -m benchmarks gru` and `lstm`: what it writes, draws and refuses, and that each peer computes the same."""

import json
import re

import numpy as np
import pytest
from benchmarks.__main__ import main
from benchmarks.implementation import OURS
from benchmarks.recurrent.problem import Layer, Sequences
from benchmarks.recurrent.workloads import Selection, workloads
from benchmarks.results import load

import qcore

SMALL = ["--hidden", "24", "--inputs", "16", "--no-peers", "--samples", "2", "--wait", "0", "--threads", "2"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "gru.json"
    shapes = ["--steps", "1", "--steps", "9", "--batch", "3", "--pipeline", "fused", "--pipeline", "staged"]
    assert main(["gru", *SMALL, *shapes, "--json", str(file)]) == 0
    return file


def test_everything_is_in_the_file(measured):
    document = json.loads(measured.read_text(encoding="utf-8"))
    assert document["operator"] == "gru"
    assert document["machine"]["threads"] == 2
    assert document["unfinished"] == []
    names = ["C=16 H=24 step B=1", "C=16 H=24 T=1 B=3", "C=16 H=24 T=9 B=3"]
    assert [case["name"] for case in document["cases"]] == names
    for case in document["cases"]:
        t, b = case["parameters"]["T"], case["parameters"]["B"]
        assert case["operations"] == 2 * t * b * 3 * 24 * (16 + 24)
        expected = {f"qcore int{bits} {pipeline}" for bits in (8, 16) for pipeline in ("fused", "staged")}
        assert {row["name"] for row in case["rows"]} == expected


def test_results_are_right_beside_their_times(measured):
    for case in load(measured).cases:
        for row in case.rows:
            assert row.same_as_reference is True
            assert row.error < (0.05 if row.weight_bits == 8 else 2e-3)
            assert row.weight_bytes == 3 * 24 * (16 + 24) * row.weight_bits // 8
            assert row.gops == pytest.approx(case.operations / row.milliseconds * 1e-6)
            assert row.kernel in {kernel.name for kernel in qcore.kernels("gru")}


def test_an_lstm_has_four_gates_and_one_pipeline(tmp_path):
    file = tmp_path / "lstm.json"
    assert main(["lstm", *SMALL, "--steps", "4", "--batch", "3", "--json", str(file)]) == 0
    document = load(file)
    assert (document.operator, [case.name for case in document.cases]) == (
        "lstm",
        ["C=16 H=24 step B=1", "C=16 H=24 T=4 B=3"],
    )
    for case in document.cases:
        assert {row.name for row in case.rows} == {"qcore int8", "qcore int16"}
        for row in case.rows:
            assert row.same_as_reference is True
            assert row.weight_bytes == 4 * 24 * (16 + 24) * row.weight_bits // 8
            assert row.kernel in {kernel.name for kernel in qcore.kernels("lstm")}


def test_patterns_select(tmp_path):
    file = tmp_path / "some.json"
    arguments = ["--steps", "2", "--batch", "1", "--no-step", "--bits", "8", "--ours", "int8", "--cases", "T=2 B=1$"]
    assert main(["gru", *SMALL, *arguments, "--json", str(file)]) == 0
    (case,) = load(file).cases
    assert (case.name, [row.name for row in case.rows]) == ("C=16 H=24 T=2 B=1", ["qcore int8 fused"])


def test_another_result_than_the_reference_kernel_is_a_failure(monkeypatch, capsys):
    from benchmarks.recurrent import qcore_impl

    monkeypatch.setattr(qcore_impl, "_same_as_reference", lambda *_: False)
    assert main(["gru", *SMALL, "--cases", "step"]) == 1
    assert "reference kernel" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # torch announces its plans for quantization
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("streamed", [False, True])
def test_everybody_computes_the_same(cell, streamed):
    """Check the libraries that are installed: within float64's layer, whole and streamed, and no state is lost."""
    selection = Selection(cell=cell, steps=(6,), batches=(1,), hidden=(32,), inputs=32, cases=re.compile("T=|step"))
    (workload,) = workloads(selection)
    inputs = workload.inputs(workload.case_names[0 if streamed else 1])
    assert inputs.data.streamed is streamed
    seen = set()
    for contender in workload.implementations():
        try:
            built = contender.build()
        except Exception:
            assert contender.library != OURS
            continue
        bound = built.bind(inputs.data)
        for _ in range(3):
            bound.run(0)
        for _ in range(2):  # a result is a stream's from its beginning, whatever ran before
            error = inputs.error(bound.result())
            bounds = {"fp32": 1e-5, "bf16": 2e-2, "int8": 5e-2, "int16": 2e-3}
            assert error < bounds[contender.scheme.arithmetic], contender.name
        if bound.same_as_reference:
            assert bound.same_as_reference()
        seen.add(contender.library)
    assert OURS in seen


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_wrong_results_are_not_timed(cell):
    data = Sequences(Layer(5, 7, cell), 4, 3)
    rows, truth = data.truth
    assert rows.tolist() == [0, 1, 2]
    assert data.error(truth) == 0
    with pytest.raises(qcore.QcoreValueError, match="bench: a result is"):
        data.error(-truth)
    with pytest.raises(qcore.QcoreValueError, match="bench: a result is nan%"):
        data.error(np.full_like(truth, np.nan))
    with pytest.raises(qcore.QcoreValueError, match=r"has shape \[3, 4, 7\]"):
        data.error(truth.transpose(1, 0, 2))
