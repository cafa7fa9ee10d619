"""`python -m benchmarks conv`: what it writes and draws, and that each peer computes the same."""

import json
from dataclasses import replace

import pytest
from benchmarks.__main__ import main
from benchmarks.conv import qcore_impl, summary
from benchmarks.conv.problem import Floats
from benchmarks.conv.workloads import workloads
from benchmarks.implementation import OURS
from benchmarks.results import load
from benchmarks.static.problem import Layer
from benchmarks.static.workloads import Selection

import qcore

SMALL = (Layer((1, 16, 8, 8), (24, 16, 3, 3), padding=1), Layer((2, 20, 9, 9), (20, 1, 3, 3), padding=1, groups=20))
OPTIONS = ["--no-peers", "--samples", "2", "--wait", "0", "--threads", "2"]


@pytest.fixture(autouse=True)
def small_layers(monkeypatch):
    monkeypatch.setattr("benchmarks.conv.command.LAYERS", SMALL)


def test_what_is_written_and_shown(tmp_path, capsys):
    file = tmp_path / "conv.json"
    assert main(["conv", *OPTIONS, "--json", str(file)]) == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    assert (document["operator"], document["unfinished"]) == ("conv", [])
    cases = load(file).cases
    assert [case.name for case in cases] == [layer.name for layer in SMALL]
    expected = {
        qcore_impl.name(bits, size, memory)
        for bits in (8, 4)
        for size in (32, 64, 128)
        for memory in ("channels_last", "nchw")
    }
    for case in cases:
        assert {row.name for row in case.rows} == expected
        for row in case.rows:
            assert row.same_as_reference is True
            assert row.error < (0.02 if row.weight_bits == 8 else 0.2)
            assert row.gops == pytest.approx(case.operations / row.milliseconds * 1e-6)
    capsys.readouterr()
    assert main(["report", str(file)]) == 0
    text = capsys.readouterr().out
    assert all(layer.name in text for layer in SMALL)
    assert all(name in text for name in expected)


def test_goals_compare_with_the_fastest_peer(tmp_path):
    file = tmp_path / "conv.json"
    assert main(["conv", *OPTIONS, "--cases", "g20", "--ours", "w8 g32 nchw", "--json", str(file)]) == 0
    (case,) = load(file).cases
    (row,) = case.rows
    peers = [replace(row, name=f"peer {n}", library="other", milliseconds=n * row.milliseconds) for n in (3, 2)]
    goal = summary._goal(row.name, [replace(case, rows=[row, *peers])])
    assert goal.values == [(case.name, pytest.approx(2))]


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_everybody_convolves(layer):
    """Check the libraries that are installed."""
    (workload,) = workloads(Selection(layers=(layer,)))
    inputs = workload.inputs(layer.name)
    seen = set()
    for contender in workload.implementations():
        bound = contender.build().bind(inputs.data)
        bound.run(0)
        assert inputs.error(bound.result()) < (0.2 if contender.library == OURS else 1e-2), contender.name
        seen.add(contender.library)
    assert OURS in seen


def test_another_result_is_an_error():
    floats = Floats(SMALL[0])
    assert floats.error(floats.truth) == 0
    with pytest.raises(qcore.QcoreValueError, match="relative error of 1"):
        floats.error(0 * floats.truth)
    with pytest.raises(qcore.QcoreValueError, match="expected"):
        floats.error(floats.truth[0])


def test_another_result_than_the_reference_kernel_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(qcore_impl, "_same_as_reference", lambda *_: False)
    assert main(["conv", *OPTIONS, "--ours", "w8 g32"]) == 1
    assert "reference kernel" in capsys.readouterr().out
