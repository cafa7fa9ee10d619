"""The benchmark of many rows, on whatever kernels this machine has."""

import pytest
from benchmarks.__main__ import main
from benchmarks.implementation import Unavailable
from benchmarks.linear import amx
from benchmarks.results import load

import qcore

KERNELS = {*amx._INT8_KERNELS, *amx._INT16_KERNELS, *amx._FLOAT_KERNELS}
AVAILABLE = {row.name for row in qcore.kernels("linear") if row.available}


def test_available_kernels_are_checked_and_measured_beside_torch(tmp_path, capsys):
    pytest.importorskip("torch")
    file = tmp_path / "amx.json"
    arguments = ["amx", "--shape", "40x256", "--m", "2", "--m", "35", "--threads", "1", "--seconds", "0"]
    assert main([*arguments, "--json", str(file)]) == 0
    document = load(file)
    assert [case.parameters["M"] for case in document.cases] == [2, 35]
    for case in document.cases:
        assert {"torch bf16", "torch dynamic int8"} <= {row.name for row in case.rows}
        ours = [row for row in case.rows if row.ours]
        assert {row.kernel for row in ours} == AVAILABLE & KERNELS
        for row in case.rows:
            assert row.milliseconds > 0
            assert row.samples == 9
        for row in ours:
            assert row.same_as_reference or 0 < row.details["error_over_bound"] < 1
    assert capsys.readouterr().out.count("torch bf16") == 2


def test_it_needs_torch(monkeypatch, capsys):
    def missing(*_):
        raise Unavailable("torch is not installed")

    monkeypatch.setattr(amx, "Layer", missing)
    assert main(["amx"]) != 0
    assert "benchmarks amx: torch is not installed" in capsys.readouterr().err


def test_a_wrong_result_is_told(monkeypatch, capsys):
    pytest.importorskip("torch")
    if not AVAILABLE & set(amx._INT8_KERNELS):
        pytest.skip("no kernel of AVX-512 VNNI here")
    monkeypatch.setattr(amx.Layer, "_same_as_reference", lambda *_: False)
    arguments = ["amx", "--shape", "16x128", "--m", "3", "--threads", "1", "--seconds", "0"]
    assert main(arguments) == 1
    assert "wrong: qcore 8b g64 int8" in capsys.readouterr().out
