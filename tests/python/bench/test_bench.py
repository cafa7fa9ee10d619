"""`python -m benchmarks`: what it writes, prints and refuses. No test looks at how long anything took."""

import json
import math

import numpy as np
import pytest
from benchmarks import libraries
from benchmarks.__main__ import main
from benchmarks.implementation import copies_for, relative_error
from benchmarks.linear.weight import Weight, pairs
from benchmarks.results import load, merge
from benchmarks.tables import Goal

import qcore
from qcore import _core

SMALL = ["--shape", "96x256", "--no-peers", "--samples", "2", "--wait", "0", "--threads", "2"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "linear.json"
    assert main(["linear", *SMALL, "--m", "1", "--m", "3", "--json", str(file)]) == 0
    return file


def test_everything_is_in_the_file(measured):
    document = json.loads(measured.read_text(encoding="utf-8"))
    assert document["operator"] == "linear"
    assert document["machine"]["threads"] == 2
    assert document["machine"]["qcore"] == qcore.__version__
    assert document["unfinished"] == []
    assert [case["name"] for case in document["cases"]] == ["96x256 M=1", "96x256 M=3"]
    for case in document["cases"]:
        assert case["operations"] == 2 * case["parameters"]["M"] * 96 * 256
        assert case["limits"]["read"] > 0
        assert [row["milliseconds"] for row in case["rows"]] == sorted(row["milliseconds"] for row in case["rows"])
        names = {row["name"] for row in case["rows"]}
        assert {f"qcore {bits}b g{g} int8" for bits in (4, 8) for g in (32, 64, 128)} < names
        assert {f"qcore 4b g64 {compute}" for compute in ("int8_asym", "int16", "float")} < names


def test_results_are_right_beside_their_times(measured):
    for case in load(measured).cases:
        for row in case.rows:
            assert row.same_as_reference is True
            assert row.samples >= 1
            assert row.error < (0.2 if row.weight_bits == 4 else 0.02)
            assert row.error_outliers < (0.2 if row.weight_bits == 4 else 0.06)
            assert row.kernel in {kernel.name for kernel in qcore.kernels("linear")}
            assert row.bits_per_weight > row.weight_bits
            assert row.gops == pytest.approx(case.operations / row.milliseconds * 1e-6)
            assert row.read_fraction > 0


def test_report_from_the_file(measured, capsys):
    assert main(["report", str(measured)]) == 0
    text = capsys.readouterr().out
    for case in load(measured).cases:
        assert case.name in text
        assert all(f"{row.milliseconds:.4g}" in text for row in case.rows)
    assert "goals" in text
    assert "int16 / float" in text


def test_report_merges_files(measured, tmp_path, capsys):
    other = tmp_path / "other.json"
    assert main(["linear", *SMALL, "--m", "2", "--ours", "4b g64 int8$", "--json", str(other)]) == 0
    capsys.readouterr()
    assert main(["report", str(measured), str(other)]) == 0
    assert "96x256 M=2" in capsys.readouterr().out
    merged = merge([load(measured), load(other)])
    assert [case.name for case in merged.cases] == ["96x256 M=1", "96x256 M=3", "96x256 M=2"]


def test_patterns_select(tmp_path):
    file = tmp_path / "some.json"
    arguments = ["--m", "1", "--m", "16", "--cases", "M=1$", "--ours", "g32 int8$", "--bits", "8", "--block-size", "32"]
    assert main(["linear", *SMALL, *arguments, "--json", str(file)]) == 0
    (case,) = load(file).cases
    assert (case.name, [row.name for row in case.rows]) == ("96x256 M=1", ["qcore 8b g32 int8"])


def test_what_does_not_fit_the_time_is_named(tmp_path, monkeypatch):
    from benchmarks.runner import Budget

    monkeypatch.setattr(Budget, "left", lambda self: 0.0)
    file = tmp_path / "none.json"
    assert main(["linear", *SMALL, "--m", "1", "--json", str(file)]) == 0
    assert load(file).unfinished == ["96x256 M=1"]


def test_another_result_than_the_reference_kernel_is_a_failure(measured, monkeypatch, capsys):
    from benchmarks.linear import qcore_impl

    monkeypatch.setattr(qcore_impl, "_same_as_reference", lambda *_: False)
    assert main(["linear", *SMALL, "--m", "1", "--ours", "4b g64 int8$"]) == 1
    assert "reference kernel" in capsys.readouterr().out


def test_plots_say_what_they_need(measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["report", str(measured), "--plot", str(tmp_path / "roofline.png")]) == 2
    assert "pip install 'libqcore[plot]'" in capsys.readouterr().err


def test_missing_library_is_a_reason_not_an_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    libraries.openvino.cache_clear()
    unavailable = {}
    assert libraries.gather([("openvino", lambda: [libraries.openvino()])], unavailable) == []
    assert "not installed" in unavailable["openvino"]


@pytest.mark.parametrize("streams", [1, 2, 4, 8])
def test_read_probe_reads_every_byte(streams):
    buffer = np.zeros(3 << 20, np.uint8)
    assert _core.probe_read(buffer, 1 << 20, 2 << 20, streams) == 0
    for place in np.linspace(1 << 20, (3 << 20) - 1, 97).astype(int):
        buffer[place] = 1
        assert _core.probe_read(buffer, 1 << 20, 2 << 20, streams) != 0
        buffer[place] = 0
    buffer[0] = 1
    assert _core.probe_read(buffer, 1 << 20, 2 << 20, streams) == 0


@pytest.mark.parametrize(
    ("offset", "size", "streams"),
    [(0, 0, 1), (0, -(1 << 20), 1), (0, 1000, 1), (0, 1 << 20, 3), (1, 1 << 20, 1), (-1, 1 << 20, 1), (0, 1 << 62, 1)],
)
def test_read_probe_refuses(offset, size, streams):
    with pytest.raises(qcore.QcoreValueError, match="probe_read"):
        _core.probe_read(np.zeros(1 << 20, np.uint8), offset, size, streams)


@pytest.mark.parametrize("probe", [_core.probe_int8_dots, _core.probe_float_fmas])
def test_peak_probes_count_their_operations(probe):
    assert probe(30) == 3 * probe(10)
    with pytest.raises(qcore.QcoreValueError, match="rounds"):
        probe(0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_peers_weights_are_close_to_the_original(bits, offsets):
    values = np.random.default_rng(3).standard_normal((5, 256)).astype(np.float32)
    values[1, :64] = 0
    blocks = Weight(values).per_block(bits, 64, offsets)
    steps = blocks.codes.astype(np.float32) - blocks.zero_points[..., None]
    back = (steps * blocks.scales[..., None]).reshape(values.shape)
    assert np.all(back[1, :64] == 0)
    assert relative_error(back, values) < {4: 0.11, 8: 0.008}[bits]


def test_peers_per_channel_weights():
    values = np.random.default_rng(4).standard_normal((3, 128)).astype(np.float32)
    codes, scales = Weight(values).per_channel()
    assert np.abs(codes).max(axis=1).tolist() == [127, 127, 127]
    assert np.abs(codes * scales[:, None] - values).max() <= scales.max() / 2 * 1.001


def test_pairs():
    assert pairs(np.array([[1, 2, 15, 0]], np.uint8)).tolist() == [[0x21, 0x0F]]


def test_copies():
    assert copies_for(80_000_000, 80_000_000) == 2
    assert copies_for(10_000_000, 80_000_000) == 8
    assert copies_for(1, 80_000_000) == 256


def test_goals():
    goal = Goal("ratio", 1.0)
    goal.add("here", 1.2)
    goal.add("there", 0.9)
    goal.add("nowhere", None)
    assert goal.worst() == ("there", 0.9)
    error = Goal("error", 1.05, at_least=False)
    error.add("a", 1.0)
    error.add("b", 1.1)
    assert error.worst() == ("b", 1.1)
    assert not error.met(math.inf)
