"""`qcore bench`: limits, and operators beside NumPy and torch. No test looks at how long anything took."""

import builtins
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.results import load

import qcore
from qcore.bench import cases
from qcore.bench.cases import OPERATORS, Case
from qcore.cli import main
from qcore.language_model import bench_command

BRIEF = ["--quick", "--samples", "2", "--threads", "2", "--no-torch"]


@pytest.fixture(autouse=True)
def restore_threads():
    threads = qcore.get_num_threads()
    yield
    qcore.set_num_threads(threads)


@pytest.fixture(autouse=True)
def brief_limits(monkeypatch):
    monkeypatch.setattr("qcore.bench.limits.READ_STREAMS", (1,))
    monkeypatch.setattr("qcore.bench.command._WAIT_SECONDS", 0)  # other tests are running


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_run(operator, tmp_path, capsys):
    file = tmp_path / "run.json"
    assert main(["bench", operator, *BRIEF, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    document = load(file)  # the harness reads what users send
    assert (document.operator, document.device, document.machine["threads"]) == (operator, "cpu", 2)
    assert document.machine["qcore"] == qcore.__version__
    assert set(document.machine["libraries"]) == {"numpy"}
    kernels = {row.name for row in qcore.kernels()}
    for case in document.cases:
        assert case.name in shown
        assert case.limits["read"] > 0
        times = [row.milliseconds for row in case.rows]
        assert times == sorted(times)
        assert any(row.ours for row in case.rows)
        for row in case.rows:
            assert f"{row.milliseconds:.4g}" in shown
            assert not row.ours or row.kernel in kernels
            assert row.read_fraction > 0
            if case.operations:
                assert row.gops == pytest.approx(case.operations / row.milliseconds * 1e-6)
                assert row.error < (0.2 if row.ours else 1e-5)


def test_what_is_compared_computes_the_same():
    """A wrong way of NumPy or torch would be a wrong comparison."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        for make in OPERATORS.values():
            for case in make(torch, True):
                for call in case.calls:
                    error = case.error(call.run(call.copies - 1))
                    assert error is None or error < (0.2 if call.name.startswith("qcore") else 1e-2), call.name


def test_limits(capsys):
    assert main(["bench", "limits", "--threads", "1", "--samples", "2"]) == 0
    shown = capsys.readouterr().out
    assert "1 threads" in shown
    assert "GB/s, reading memory" in shown


@pytest.mark.parametrize("command", [["all"], []], ids=["all", "no command"])
def test_all_runs_every_operator(command, monkeypatch, capsys, tmp_path):
    asked = []

    def run(name, session, **options):
        asked.append((name, options | {"samples": session.plan.samples}))
        return {"operator": name}

    monkeypatch.setattr("qcore.bench.command._run", run)
    assert main(["bench", *command, *BRIEF, "--json", str(tmp_path / "all.json")]) == 0
    assert len(json.loads((tmp_path / "all.json").read_text())["operators"]) == len(OPERATORS)
    assert [name for name, _ in asked] == list(OPERATORS)
    assert all(options["quick"] and options["no_torch"] and options["samples"] == 2 for _, options in asked)
    assert "reading memory" in capsys.readouterr().out


def test_torch_may_be_missing(monkeypatch, capsys):
    real = builtins.__import__

    def without_torch(name, *arguments, **options):
        if name == "torch":
            raise ImportError("no torch")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    assert main(["bench", "gru", "--quick", "--samples", "2"]) == 0
    assert "torch" not in capsys.readouterr().out


def test_errors_are_relative_to_the_truth():
    case = Case("a case", 1, np.array([3.0, 4.0]))
    assert case.error(np.array([3.0, 4.0])) == 0
    assert case.error(np.array([3.0, 3.0])) == pytest.approx(0.2)
    assert Case("a copy", 0).error(None) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["linear", "--threads", "0"], "--threads"),
        (["linear", "--samples", "1"], "--samples"),
        (["gru", "--quick", "--json", "absent/run.json"], "absent"),
        (["nonsense"], "nonsense"),
    ],
)
def test_usage_errors_are_one_line(arguments, words, capsys):
    assert main(["bench", *arguments, *(["--samples", "2"] if "--json" in arguments else [])]) == 2
    error = capsys.readouterr().err
    assert error.startswith("qcore: error: ")
    assert error.count("\n") == 1
    assert words in error


@pytest.mark.parametrize("arguments", [[], ["all"], ["limits"], *([name] for name in OPERATORS)], ids=" ".join)
def test_help_has_examples(arguments, capsys):
    assert main(["bench", *arguments, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out


def test_the_shipped_benchmark_is_small():
    """The comparison with all other libraries belongs to benchmarks/, not into every wheel."""
    files = [*Path(cases.__file__).parent.glob("*.py"), Path(bench_command.__file__)]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 1000
