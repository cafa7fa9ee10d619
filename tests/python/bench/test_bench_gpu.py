"""`python -m benchmarks gpu`: what it refuses, and what becomes of samples. Times need a device: tests/python/gpu."""

import importlib.util
import json
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.gpu import device
from benchmarks.gpu.peers import add_nearest_configurations, peers_of
from benchmarks.gpu.summary import OPERATORS, case_table, rivals, standing, torch_row
from benchmarks.results import Document, load

ROOT = Path(__file__).resolve().parents[3]
has_torch = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize("operator", OPERATORS)
def test_without_a_device_it_says_so(operator, monkeypatch, capsys):
    if has_torch:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["gpu", operator]) == 2
    error = capsys.readouterr().err
    assert error.startswith("benchmarks: error: benchmarks gpu: torch ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["linear", "--shape", "12"], "'12' is not NxK"),
        (["linear", "--bits", "5"], "--bits"),
        (["linear", "--g", "-1"], "--g"),
        (["linear", "--scheme", "odd"], "--scheme"),
        (["linear", "--compute", "int4"], "--compute"),
        (["linear", "--encoding", "q9_k"], "--encoding"),
        (["linear", "--kernels", "("], "--kernels"),
        (["grouped", "--shape", "8x2x64"], "ExTxNxK"),
        (["grouped", "--compute", "int4"], "--compute"),
        (["activations", "--operator", "norms"], "--operator"),
        (["conv", "--case", "nothing"], "--case"),
        (["lut", "--function", "sine"], "--function"),
        (["lut", "--dtype", "int8"], "--dtype"),
        (["gru", "--bits", "4"], "--bits"),
        (["awq", "--shape", "64x64"], "KxNxg"),
        (["decoder", "--past", "0"], "--past"),
        (["decoder", "--rounds", "1"], "--rounds"),
    ],
)
def test_usage_errors_are_one_line(arguments, words, capsys):
    assert main(["gpu", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


def timed(name, samples, **options):
    return device.Timed(name, name.partition(" ")[0], lambda _: None, samples=samples, **options)


def test_rows_of_samples():
    """The first sample warms up; fractions are of the limits."""
    fast = timed("qcore a", [9.0, 1e-3, 2e-3, 3e-3], bytes_per_call=4_000_000, operations=10**9, facts={"error": 0.1})
    slow = timed("torch b", [9.0, 4e-3], bytes_per_call=4_000_000)
    refused = timed("torch c", [])
    refused.problem = "RuntimeError: no"
    case = device.case_of("case", {"N": 1}, 10**9, {"copy": 10.0, "int8": 1000.0}, [slow, refused, fast])
    assert [row.name for row in case.rows] == ["qcore a", "torch b"]
    assert case.skipped == {"torch c": "RuntimeError: no"}
    first, second = case.rows
    assert (first.milliseconds, first.minimum, first.samples, first.error) == (2.0, 1.0, 3, 0.1)
    assert (first.weight_gbs, first.read_fraction) == pytest.approx((2.0, 0.2))
    assert (first.gops, first.dot_fraction) == pytest.approx((500.0, 0.5))
    assert (second.gops, second.dot_fraction) == (None, None)
    assert case_table(case).row_count == 2
    assert case_table(case, 0).row_count == 1


def test_torch_row_computes_something():
    names = ["torch copy_", "torch _int_mm (codes given, int32 out)", "torch bf16"]
    case = device.case_of("case", {}, 0, {}, [timed(name, [1.0, 1.0 + n]) for n, name in enumerate(names)])
    assert torch_row(case).name == "torch bf16"


def test_standing_compares_the_same_job():
    """Only public kernels with our weights' bits, block size and kind of activations count, and torch in bf16 apart."""
    form = {"weight_bits": 4, "block_size": 128, "activations": "int8"}
    rows = [
        timed("qcore int8 w4 g128", [1.0, 2.0], facts=form | {"kernel": "chosen"}),
        timed("humming int8 w4 g128", [1.0, 3.0], facts=form),
        timed("humming float w4 g128", [1.0, 1.0], facts=form | {"activations": "float"}),
        timed("torch int4 (codes given)", [1.0, 1.0], facts=form),
        timed("torch bf16", [1.0, 5.0], facts={"weight_bits": 16}),
    ]
    case = device.case_of("case", {"N": 8, "K": 256, "M": 1}, 0, {}, rows)
    ours = next(row for row in case.rows if row.ours)
    assert [row.name for row in rivals(case, ours)] == ["humming int8 w4 g128"]
    tables = standing(Document("linear", {}, {}, cases=[case]))
    cells = [[list(column.cells) for column in table.columns] for table in tables]
    assert cells == [[["8x256 int8 w4 g128"], ["1.50"]], [["8x256 int8 w4 g128"], ["2.50"]]]
    assert standing(Document("linear", {}, {}, cases=[])) == []


def test_peers_store_weights_as_we_do():
    def names(*form):
        return [peer.name for peer in peers_of(*form)]

    assert names(4, 128, 4096) == ["gemlite float w4 g128", "humming float w4 g128", "humming int8 w4 g128"]
    assert names(8, 64, 4096) == ["humming float w8 g64", "humming int8 w8 g64"]
    assert names(8, 4096, 4096) == ["humming int8 w8 per channel", "gemlite int8 w8 per channel"]


def test_untuned_shapes_take_the_nearest_configuration():
    tuned = {"(1, 4096, 4096, 128, 8, 1)": "square", "(1, 14336, 4096, 4096, 8, 1)": "broad"}
    cache = {"kernel": dict(tuned), "empty": {}}
    add_nearest_configurations(cache, 11008, 4096)
    assert cache == {"kernel": tuned | {"(1, 11008, 4096, 4096, 8, 1)": "broad"}, "empty": {}}
    add_nearest_configurations(cache, 4096, 4096)
    assert len(cache["kernel"]) == 3


def test_copies_exceed_the_cache():
    assert device.copies_for(1) == 64
    assert device.copies_for(100 << 20) == 3
    assert device.copies_for(1 << 30) == 1


def test_a_device_document_comes_back(tmp_path):
    case = device.case_of("case", {}, 1, {}, [timed("qcore", [1.0, 2.0], facts={"details": {"note": "plain"}})])
    document = Document("gru", {}, {"device": "a device", "libraries": {"torch": "2"}}, "cuda", cases=[case])
    document.save(tmp_path / "gru.json")
    assert load(tmp_path / "gru.json") == document


@pytest.mark.skipif(not (ROOT / "benchmarks" / "results").is_dir(), reason="needs a source tree")
def test_every_kept_result_is_shown(capsys):
    files = sorted((ROOT / "benchmarks" / "results").glob("*/*.json"))
    assert files
    for file in files:
        assert json.loads(file.read_text(encoding="utf-8"))["schema"] == 2
        assert main(["report", str(file)]) == 0
        shown = capsys.readouterr().out
        document = load(file)
        assert document.operator == "models" or all(case.name in shown for case in document.cases)


@pytest.mark.parametrize("command", ["decoder", "overhead"])
def test_other_commands_write_results(command, tmp_path, capsys):
    file = tmp_path / "run.json"
    brief = {"decoder": ["tiny", "--runs", "1"], "overhead": ["--calls", "2", "--runs", "1"]}[command]
    assert main([command, *brief, "--json", str(file)]) == 0
    (case,) = load(file).cases
    capsys.readouterr()
    assert main(["report", str(file)]) == 0
    shown = capsys.readouterr().out
    assert all(row.name in shown for row in case.rows)
    assert main(["report", str(file), "--plot", str(tmp_path / "run.svg")]) == 2
    assert "there is no plot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decoder", "huge"], "MODEL"),
        (["decoder", "tiny", "--bits", "3"], "--bits"),
        (["models", "--shape", "x"], "--shape"),
    ],
)
def test_other_commands_refuse(arguments, words, capsys):
    if arguments[0] == "models" and not has_torch:
        words = "torch is not installed"
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
