"""`python -m benchmarks awq`: what it writes, prints and refuses, and that each peer computes the same."""

import json
import os

import awq_oracle
import numpy as np
import pytest
from benchmarks.__main__ import main
from benchmarks.awq.problem import Layer, Problem, Shape
from benchmarks.awq.workloads import QUICK, SHAPES, Selection, workloads
from benchmarks.results import Case, Document, Row, load

import qcore

SMALL = ["--shape", "64x40x32", "--m", "1", "--m", "13", "--no-peers", "--samples", "2", "--wait", "0"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "awq.json"
    assert main(["awq", *SMALL, "--json", str(file)]) == 0
    return file


def test_everything_is_in_the_file(measured):
    document = json.loads(measured.read_text(encoding="utf-8"))
    assert document["operator"] == "awq"
    assert document["settings"]["shapes"] == ["64x40x32"]
    assert document["unfinished"] == []
    assert [case["name"] for case in document["cases"]] == [
        "64x40 g32 dequantize",
        "64x40 g32 M=1",
        "64x40 g32 M=13",
    ]
    for case, m in zip(document["cases"], (0, 1, 13), strict=True):
        assert case["parameters"] == {"K": 64, "N": 40, "g": 32, "M": m}
        assert case["operations"] == 64 * 40 * max(1, 2 * m)
        assert case["limits"]["copy"] > 0
        names = {"qcore arrays", "qcore Weight"} if m else {"qcore out=", "qcore out=, transposed"}
        assert {row["name"] for row in case["rows"]} == names


def test_results_are_right_beside_their_times(measured):
    for case in load(measured).cases:
        dequantized = case.parameters["M"] == 0
        for row in case.rows:
            assert row.error < (3e-4 if dequantized else 2e-6)
            assert row.same_as_reference is (True if dequantized else None)
            assert row.weight_bytes == 32 * 40 + 2 * 20 + 2 * 40 * 2 + (2 * 64 * 40 if dequantized else 0)
            assert row.read_fraction > 0
            assert row.kernel in {kernel.name for kernel in qcore.kernels()}


def test_patterns_select(tmp_path):
    file = tmp_path / "some.json"
    assert main(["awq", *SMALL, "--cases", "M=13", "--ours", "arrays", "--json", str(file)]) == 0
    (case,) = load(file).cases
    assert (case.name, [row.name for row in case.rows]) == ("64x40 g32 M=13", ["qcore arrays"])


def test_another_result_than_the_reference_kernel_is_a_failure(monkeypatch, capsys):
    from benchmarks.awq import qcore_impl

    monkeypatch.setattr(qcore_impl, "_same_as_reference", lambda *_: False)
    assert main(["awq", *SMALL, "--cases", "dequantize"]) == 1
    assert "reference kernel" in capsys.readouterr().out


@pytest.mark.parametrize("m", [None, 3])
def test_everybody_computes_the_same(m):
    """Check the libraries that are installed."""
    chosen = workloads(Selection(shapes=[(256, 64, 128)], rows=[3], rotated_bytes=1))
    (workload,) = [workload for workload in chosen if workload.problem.m == m]
    inputs = workload.inputs(workload.case_names[0])
    computed = set()
    for contender in workload.implementations():
        built = contender.build()
        bound = built.bind(inputs.data)
        for copy in range(built.copies):
            bound.run(copy)
        error = inputs.error(bound.result())
        if "copy" in contender.name:
            assert error is None
        else:
            assert error < (2e-2 if "acc4" in contender.name else 3e-4), contender.name
            computed.add(contender.name)
        built.close()
    assert {name for name in computed if name.startswith("qcore")} == (
        {"qcore arrays", "qcore Weight"} if m else {"qcore out=", "qcore out=, transposed"}
    )
    limit = workload.limits(inputs.name).read.bytes_per_call
    assert limit == workload.problem.moved_bytes // 2 * 2


def test_the_weight_is_awqs():
    layer = Layer(Shape(64, 24, 16))
    assert np.array_equal(awq_oracle.exact(*layer.arrays).T, layer.values)
    blocks = layer.per_block(4, 16, True)
    values = (blocks.codes.astype(np.float32) - blocks.zero_points[..., None]) * blocks.scales[..., None]
    assert np.array_equal(values.reshape(24, 64), layer.values)
    with pytest.raises(qcore.QcoreValueError, match="4 bits, g = 16 and zeros"):
        layer.per_block(8, 16, True)


def test_quick_is_small():
    largest = max(Problem(Shape(*shape)).moved_bytes for shape in QUICK.shapes)
    assert largest < min(Problem(Shape(*shape)).moved_bytes for shape in SHAPES[:2])


def test_goals_are_about_large_weights_and_the_fastest_copy():
    from benchmarks.awq.summary import summarize
    from rich.console import Console

    def row(name, library, milliseconds, error=1e-7):
        return Row(
            name=name, library=library, weight_bits=4, block_size=128, offsets=True, activations="fp32",
            arithmetic="fp32", weight_bytes=1, bits_per_weight=4, milliseconds=milliseconds, minimum=1, spread=0,
            samples=3, disturbed=0, gops=1, weight_gbs=1, read_fraction=0.5, dot_fraction=None, error=error,
            error_outliers=None, kernel="", same_as_reference=None,
        )  # fmt: skip

    def case(k, m, *rows):
        return Case(f"{k} {m}", "", {"K": k, "N": k, "g": 128, "M": m}, 1, {}, list(rows), {})

    cases = [
        case(4096, 0, row("qcore out=", "qcore", 4.0), row("torch copy_", "torch", 8.0),
             row("numpy copyto (1 thread)", "numpy", 2.0), row("qcore out=, transposed", "qcore", 2.0)),
        case(4096, 1, row("qcore Weight", "qcore", 1.0), row("acc0", "onnxruntime", 3.0),
             row("acc4", "onnxruntime", 0.5, 1e-2)),
        case(512, 0, row("qcore out=", "qcore", 1.0)),
    ]  # fmt: skip
    document = Document("awq", {}, {})
    document.cases = cases
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for part in summarize(document):
        console.print(part)
    lines = [line for line in console.export_text().splitlines() if "4096" in line]
    assert [line.split()[-3] for line in lines] == ["0.500", "1.000", "3.000"]
