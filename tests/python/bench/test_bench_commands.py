"""Behavior that all commands of `python -m benchmarks` share: options, files, plots, reports, errors."""

import importlib.util
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from benchmarks import session
from benchmarks.__main__ import main
from benchmarks.operators import OPERATORS
from benchmarks.options import BENCHMARKS
from benchmarks.results import SCHEMA, load

import qcore

BRIEF = ["--no-peers", "--samples", "2", "--wait", "0", "--threads", "2"]
# One small case of each.
SMALL = {
    "quantize": (["--shape", "40x128", "--cases", "^quantize .* 4b"], "GB/s"),
    "linear": (["--shape", "96x256", "--m", "1", "--ours", "4b g64 int8$"], "goals"),
    "conv": (["--cases", "256x28x28 w256x1", "--ours", "w8 g64 nchw"], "GOP/s"),
    "static": (["--cases", "256x28x28 w256x1x3x3 s2", "--ours", "nchw$"], "GOP/s"),
    "gru": (["--hidden", "24", "--inputs", "16", "--steps", "2", "--batch", "1", "--no-step"], "us/step"),
    "lstm": (["--hidden", "24", "--inputs", "16", "--steps", "2", "--batch", "1", "--no-step"], "us/step"),
    "lut": (["--size", "640", "--function", "silu", "--dtype", "fp16"], "Gelem/s"),
    "awq": (["--shape", "64x40x32", "--m", "13", "--cases", "dequantize"], "copy"),
}
has_matplotlib = importlib.util.find_spec("matplotlib") is not None
each_operator = pytest.mark.parametrize("operator", OPERATORS)


def test_every_kernel_is_measured():
    measured = {name for operator in OPERATORS.values() for name in operator.kernels}
    # Decoders and embeddings are timed whole, by `python -m benchmarks decoder` and `qcore bench model`; the kernels of
    # grouped_linear are those of linear.
    operators = {row.op for row in qcore.kernels()}
    assert measured == {op for op in operators - {"embedding", "grouped_linear"} if not op.startswith("decoder_")}
    assert set(OPERATORS) == set(BENCHMARKS) == set(SMALL)


@each_operator
def test_a_run(operator, tmp_path, capsys):
    file, picture = tmp_path / "run.json", tmp_path / "run.svg"
    arguments, word = SMALL[operator]
    assert main([operator, *BRIEF, *arguments, "--json", str(file)]) == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    assert (document["operator"], document["unfinished"]) == (operator, [])
    assert document["machine"]["threads"] == 2
    assert document["machine"]["qcore"] == qcore.__version__
    assert {"cases", "ours", "peers", "samples", "seconds", "wait", "isa"} < set(document["settings"])
    shown = capsys.readouterr().out
    assert main(["report", str(file)]) == 0
    text = capsys.readouterr().out
    for out in (shown, text):
        assert word in out
        for case in load(file).cases:
            assert case.name in out
            assert all(f"{row.milliseconds:.4g}" in out for row in case.rows)
    if not has_matplotlib:
        assert main(["report", str(file), "--plot", str(picture)]) == 2
        assert "pip install 'libqcore[plot]'" in capsys.readouterr().err
        return
    assert main(["report", str(file), "--plot", str(picture)]) == 0
    assert "<svg" in picture.read_text(encoding="utf-8")
    assert main([operator, *BRIEF, *arguments, "--plot", str(tmp_path / "other.svg")]) == 0
    assert (tmp_path / "other.svg").is_file()


def test_all(tmp_path, monkeypatch, capsys):
    """Brief runs of all operators; one that fails does not keep the others from running."""
    asked = {}

    def body(run):
        asked[run.operator] = run
        if run.operator == "gru":
            raise typer.Exit(1)

    for name in BENCHMARKS:
        monkeypatch.setitem(BENCHMARKS, name, body)
    assert main(["all", "--folder", str(tmp_path), "--no-peers", "--threads", "1"]) == 1
    assert set(asked) == set(OPERATORS)
    for name, run in asked.items():
        assert (run.quick, run.no_peers, run.threads, run.json) == (True, True, 1, tmp_path / f"{name}.json")
        assert run.plot == (tmp_path / f"{name}.svg" if has_matplotlib else None)
    assert main(["all", "--folder", str(tmp_path / "absent")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@each_operator
def test_quick_is_a_part_of_all(operator, monkeypatch):
    from benchmarks.options import Run

    seen = []
    module = BENCHMARKS[operator].__module__
    monkeypatch.setattr(f"{module}.measure", lambda *given: seen.append(given[-1]))
    run = Run(operator, no_peers=True)
    BENCHMARKS[operator](run)
    BENCHMARKS[operator](replace(run, quick=True))
    whole, quick = (sum(len(workload.case_names) for workload in workloads) for workloads in seen)
    assert 0 < quick < whole


@pytest.mark.parametrize(
    ("isa", "in_use", "accepted"),
    [
        ("avx512vnni", ["avx2", "avxvnni", "avx512vnni", "avx512bf16"], True),
        ("amx", ["avx2", "avx512vnni", "avx512bf16", "amx", "amxbf16"], True),
        ("amx", ["avx2", "avx512vnni", "avx512bf16"], False),
        ("avx2", [], False),
    ],
)
def test_isa_is_the_highest_in_use(isa, in_use, accepted, monkeypatch):
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(qcore, "info", lambda: {"isa": in_use})
    with nullcontext() if accepted else pytest.raises(qcore.QcoreValueError, match=f"--isa {isa}: qcore uses"):
        session._cap(isa)


SHARED_ERRORS = [
    (["--cases", "("], "--cases"),
    (["--cases", "nothing"], "--cases"),
    (["--ours", "["], "--ours"),
    (["--peers", "*"], "--peers"),
    (["--isa", "mmx"], "--isa"),
    (["--samples", "0"], "--samples"),
    (["--json", "absent/run.json"], "absent"),
    (["--plot", "run.bmp"], "run.bmp"),
]
OWN_ERRORS = [
    (["linear", "--shape", "12"], "--shape"),
    (["linear", "--shape", "128x100"], "--shape"),
    (["linear", "--bits", "7"], "--bits"),
    (["linear", "--block-size", "48"], "--block-size"),
    (["linear", "--m", "0"], "--m"),
    (["quantize", "--shape", "64x100"], "'64x100' is not NxK"),
    (["awq", "--shape", "64"], "'64' is not KxN"),
    (["awq", "--shape", "128x12"], "N a multiple of 8"),
    (["awq", "--shape", "100x16x32"], "K of g"),
    (["awq", "--shape", "96x16x24"], "power of two"),
    (["awq", "--m", "0"], "--m"),
    (["gru", "--bits", "4"], "'4' is not one of 8, 16"),
    (["gru", "--pipeline", "fast"], "'fast' is not one of fused, staged"),
    (["gru", "--steps", "0"], "--steps"),
    (["gru", "--hidden", "0"], "--hidden"),
    (["lut", "--function", "sine"], "'sine' is not one of silu, "),
    (["lut", "--dtype", "int8"], "'int8' is not one of fp32, "),
    (["lut", "--size", "0"], "--size"),
    (["report", "absent.json"], "absent.json"),
    (["report"], "FILE"),
    (["nonsense"], "nonsense"),
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([operator, *arguments], words) for operator in OPERATORS for arguments, words in SHARED_ERRORS] + OWN_ERRORS,
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_are_one_line(arguments, words, capsys):
    assert main([*arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("benchmarks: error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.parametrize("arguments", [[], ["all"], ["report"], *([name] for name in OPERATORS)], ids=" ".join)
def test_help_has_examples(arguments, capsys):
    assert main([*arguments, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:\n" in text
    if not arguments:
        assert all(f"\n  {name} " in text for name in OPERATORS)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 2}', '{"schema": 1}'])
def test_other_files_are_refused(text, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    assert main(["report", str(file)]) == 2
    assert "holds no results" in capsys.readouterr().err


def test_operators_are_not_merged(tmp_path, capsys):
    document = {"schema": SCHEMA, "operator": "lut", "settings": {}, "machine": {}, "cases": []}
    files = [Path(tmp_path / f"{name}.json") for name in ("lut", "linear")]
    for file in files:
        file.write_text(json.dumps(document | {"operator": file.stem}))
    assert main(["report", *map(str, files)]) == 2
    assert "different operators" in capsys.readouterr().err
