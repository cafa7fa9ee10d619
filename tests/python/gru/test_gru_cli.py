"""`qcore gru`: what it writes and prints, and one-line errors with exit status 2."""

import importlib.util
import json
from dataclasses import asdict

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from qcore._recurrent.chunks import run_in_chunks
from qcore.cli import app, main
from qcore.gru import TENSORS, Calibrator, Config, GruWeights, QuantGRU, verify_golden

C, H = 5, 7


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def state_dict(layers=1, directions=1, prefix="", seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for layer in range(layers):
        inputs = C if layer == 0 else H * directions
        for end in ("", "_reverse")[:directions]:
            shapes = {"weight_ih": (3 * H, inputs), "weight_hh": (3 * H, H), "bias_ih": 3 * H, "bias_hh": 3 * H}
            for part, shape in shapes.items():
                arrays[f"{prefix}{part}_l{layer}{end}"] = rng.normal(0, 0.4, shape).astype(np.float32)
    return arrays


def sequences(steps=20, batch=3, seed=1):
    return np.random.default_rng(seed).normal(0, 1, (steps, batch, C)).astype(np.float32)


@pytest.fixture
def files(tmp_path):
    save_file(state_dict(layers=2), tmp_path / "weights.safetensors")
    np.savez(tmp_path / "one.npz", x=sequences(seed=1), h0=np.full((2, 3, H), 0.25, np.float32))
    np.save(tmp_path / "two.npy", sequences(seed=2))
    return tmp_path


def same_files(*paths):
    """Check that two files have the same tensors and descriptions; the order of metadata is chance."""
    found = []
    for path in paths:
        with safe_open(path, "numpy") as file:
            found.append((file.metadata(), {name: file.get_tensor(name).tolist() for name in file.keys()}))  # noqa: SIM118
    assert found[0] == found[1]


def quantized(files, *options):
    out = files / "gru.safetensors"
    arguments = ["weights.safetensors", "one.npz", "two.npy"]
    assert main(["gru", "calibrate", *(str(files / name) for name in arguments), "-o", str(out), *options]) == 0
    return out


def test_calibrate_is_the_calibrator(files):
    """Through typer's own runner, too."""
    weights = GruWeights.from_state_dict(state_dict(layers=2))
    out = files / "gru.safetensors"
    arguments = [str(files / name) for name in ("weights.safetensors", "one.npz", "two.npy")]
    options = ["--bits", "16", "--pipeline", "fused", "--method", "minmax"]
    result = CliRunner().invoke(app, ["gru", "calibrate", *arguments, "-o", str(out), *options])
    assert result.exit_code == 0, result.output
    calibrator = Calibrator(weights, "minmax").observe(sequences(seed=1), np.full((2, 3, H), 0.25))
    expected = calibrator.observe(sequences(seed=2)).finish(Config(bits=16, pipeline="fused"))
    expected.save(files / "expected.safetensors")
    same_files(out, files / "expected.safetensors")
    assert repr(expected) in result.output
    form = expected.format("old_part", 1)
    assert f"2^{-form.exponent}" in next(line for line in result.output.splitlines() if line.startswith(" old_part"))


def test_json_of_calibrate_run_and_golden(files, capsys):
    q = QuantGRU.load(quantized(files, "--json", str(files / "formats.json")))
    written = json.loads((files / "formats.json").read_text())
    assert written["repr"] == repr(q) and Config.from_json(json.dumps(written["config"])) == q.config
    rows = {(row["tensor"], row["layer"], row["direction"]): row for row in written["tensors"]}
    assert len(rows) == len(written["tensors"]) == 2 * len(TENSORS)
    form, row = q.format("old_part", 1), rows["old_part", 1, 0]
    assert {name: row[name] for name in asdict(form)} == asdict(form)
    assert [row["lowest"], row["highest"]] == form.decode(np.array([form.lowest, form.highest])).tolist()
    model, inputs = str(files / "gru.safetensors"), str(files / "one.npz")
    out, file = str(files / "out.npz"), files / "run.json"
    assert main(["gru", "run", model, inputs, "-o", out, "--json", str(file)]) == 0
    shapes = {"y": [20, 3, H], "last": [2, 3, H]}
    arrays = {name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items()}
    assert json.loads(file.read_text()) == {"output": out, "arrays": arrays}
    golden = str(files / "golden.safetensors")
    assert main(["gru", "golden", model, inputs, "-o", golden, "--json", str(file)]) == 0
    assert json.loads(file.read_text()) == {"output": golden} | asdict(verify_golden(golden))


def test_config_and_options(files, capsys):
    config = Config(bits=16, widths={"h": 11}, granularity="gate")
    (files / "config.json").write_text(config.to_json())
    made = QuantGRU.load(quantized(files, "--config", str(files / "config.json"), "--pipeline", "fused"))
    assert made.config == Config(bits=16, widths={"h": 11}, granularity="gate", pipeline="fused")
    assert QuantGRU.load(quantized(files)).config == Config()
    capsys.readouterr()
    (files / "config.json").write_text('{"widths": {"h": 99}}')
    arguments = [str(files / name) for name in ("weights.safetensors", "two.npy")]
    options = ["-o", str(files / "other"), "--config", str(files / "config.json")]
    assert main(["gru", "calibrate", *arguments, *options]) == 2
    assert capsys.readouterr().err == (
        "qcore: error: gru config: widths['h'] is 99, expected an integer from 2 to 16\n"
    )
    assert not (files / "other").exists()
    for command in (["calibrate", *arguments], ["golden", str(files / "gru.safetensors"), arguments[1]]):
        assert main(["gru", *command, "-o", str(files / "other.npz")]) == 2
        assert f"gru {command[0]}: --output is '{files / 'other.npz'}', expected" in capsys.readouterr().err


def test_which_gru_of_a_checkpoint(files, capsys):
    several = state_dict(prefix="encoder.rnn.") | state_dict(prefix="decoder.", seed=3) | {"head.weight": np.ones(3)}
    np.savez(files / "model.npz", **several)
    arguments = [str(files / "model.npz"), str(files / "two.npy"), "-o", str(files / "gru.safetensors")]
    assert main(["gru", "calibrate", *arguments]) == 2
    assert "has 2 GRUs, expected a name among: 'decoder', 'encoder.rnn'" in capsys.readouterr().err
    assert main(["gru", "calibrate", *arguments, "--name", "rnn"]) == 2
    assert "has no rnn.weight_ih_l0, expected a name among: 'decoder', 'encoder.rnn'" in capsys.readouterr().err
    assert main(["gru", "calibrate", *arguments, "--name", "decoder"]) == 0
    expected = Calibrator(GruWeights.from_state_dict(state_dict(seed=3))).observe(sequences(seed=2)).finish()
    x = sequences(seed=4)
    np.testing.assert_array_equal(QuantGRU.load(files / "gru.safetensors")(x)[0], expected(x)[0])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_run(files, suffix, capsys):
    model = quantized(files)
    q = QuantGRU.load(model)
    x, h0 = sequences(50, seed=5), np.random.default_rng(6).uniform(-0.5, 0.5, (2, 3, H)).astype(np.float32)
    lengths = np.array([50, 3, 17], np.int32)
    save_file({"x": x, "h0": h0, "lengths": lengths}, files / "in.safetensors")
    out = files / f"out{suffix}"
    assert main(["gru", "run", str(model), str(files / "in.safetensors"), "-o", str(out), "--steps", "7"]) == 0
    found = dict(np.load(out)) if suffix == ".npz" else load_file(out)
    y, last = q(x, h0, lengths=lengths)
    np.testing.assert_array_equal(found["y"], y)
    np.testing.assert_array_equal(found["last"], last)
    assert "y [50, 3, 7] and last [2, 3, 7], float32" in capsys.readouterr().out


def test_parts_of_a_sequence_are_the_whole():
    for bits in (8, 16):
        for batch_first in (False, True):
            weights = GruWeights.from_state_dict(state_dict(layers=2), batch_first=batch_first)
            x = sequences(23, 3, seed=8)
            x = x.transpose(1, 0, 2) if batch_first else x
            q = Calibrator(weights).observe(x).finish(Config(bits=bits))
            form = q.format("x")
            for given in (x, x.astype(np.float64), form.encode(x).astype(form.dtype)):
                whole = q(given.astype(np.float32) if given.dtype.kind == "f" else given)
                done = []
                parts = run_in_chunks(q, given, steps=5, progress=done.append)
                for part, expected in zip(parts, whole, strict=True):
                    assert part.dtype == expected.dtype
                    np.testing.assert_array_equal(part, expected)
                assert done == pytest.approx([5 / 23, 10 / 23, 15 / 23, 20 / 23, 1])
    both = Calibrator(GruWeights.from_state_dict(state_dict(directions=2))).observe(sequences()).finish()
    np.testing.assert_array_equal(run_in_chunks(both, sequences(), steps=5)[0], both(sequences())[0])


def test_progress_of_calibration():
    weights = GruWeights.from_state_dict(state_dict(layers=2, directions=2))
    done = []
    Calibrator(weights).observe(sequences(5), progress=done.append)
    assert done == pytest.approx(np.arange(1, 21) / 20)


def test_report(files, capsys):
    model = quantized(files)
    x, h0 = sequences(9, seed=5), np.full((2, 3, H), 0.5, np.float32)
    np.savez(files / "in.npz", x=x, h0=h0)
    arguments = [str(model), str(files / "weights.safetensors"), str(files / "in.npz")]
    capsys.readouterr()
    outputs = ["--json", str(files / "report.json")]
    if importlib.util.find_spec("matplotlib"):
        outputs += ["--plot", str(files / "report.svg")]
    assert main(["gru", "report", *arguments, *outputs]) == 0
    q = QuantGRU.load(model)
    expected = q.report(x, h0, GruWeights.from_state_dict(state_dict(layers=2)))
    assert (files / "report.json").read_text() == expected.to_json()
    text = capsys.readouterr().out
    assert repr(q) in text
    row = expected.row("h", 1)
    assert f"{row.sqnr:.1f}" in next(line for line in text.splitlines() if line.split()[:2] == ["1", "h"])
    if len(outputs) > 2:
        assert "<svg" in (files / "report.svg").read_text(encoding="utf-8")
    else:
        assert main(["gru", "report", *arguments, "--plot", str(files / "report.svg")]) == 2
        assert "pip install 'libqcore[plot]'" in capsys.readouterr().err


def test_golden(files, capsys):
    model, out = quantized(files), files / "golden.safetensors"
    capsys.readouterr()
    assert main(["gru", "golden", str(model), str(files / "one.npz"), "-o", str(out)]) == 0
    check = verify_golden(out)
    assert (check.layers, check.steps) == (2, 20)
    assert f"golden.safetensors: {check}\n" in capsys.readouterr().out
    q = QuantGRU.load(model)
    codes = q.format("x").encode(sequences(seed=1)).astype(np.int8)
    h0 = np.stack([q.format("h", layer).encode(np.full((3, H), 0.25)) for layer in range(2)]).astype(np.int8)
    np.testing.assert_array_equal(load_file(out)["y"], q(codes, h0)[0])


def test_export(files, capsys):
    """``export-c`` is the command's former name."""
    model, header, file = quantized(files), files / "wake.h", files / "sizes.json"
    for command, tables in [("export", "interp"), ("export-c", "exact")]:
        capsys.readouterr()
        options = ["--name", "wake", "--inputs", str(files / "two.npy"), "--json", str(file)]
        options += ["--tables", tables] if tables == "exact" else []
        assert main(["gru", command, str(model), "-o", str(header), *options]) == 0
        printed = capsys.readouterr().out
        made = [path.read_text() for path in (header, files / "wake_selftest.c")]
        sizes = QuantGRU.load(model).export_c(header, "wake", sequences(seed=2), tables=tables)
        assert [path.read_text() for path in (header, files / "wake_selftest.c")] == made
        assert printed.splitlines() == [f"{header} and {files / 'wake_selftest.c'}, tables {tables}", *sizes.lines()]
        files_written = {"output": str(header), "selftest": str(files / "wake_selftest.c"), "tables": tables}
        assert json.loads(file.read_text()) == files_written | sizes.to_dict()
    assert f"multiply-adds per step: {3 * H * (C + 3 * H)}" in printed


def test_tables_of_calibrate(files):
    assert QuantGRU.load(quantized(files, "--tables", "interp")).config == Config(tables="interp")


@pytest.fixture
def bad(files):
    (files / "broken.npz").write_bytes(b"PK nothing")
    (files / "broken.safetensors").write_bytes(b"nothing")
    (files / "broken.npy").write_bytes(b"")
    (files / "note.txt").write_text("x")
    (files / "config.json").write_bytes(b"\xff\xfe")
    np.savez(files / "named.npz", x=sequences(), y=sequences())
    np.savez(files / "lengths.npz", x=sequences(), lengths=np.array([1, 2, 3], np.int32))
    np.savez(files / "objects.npz", x=np.array([{}, {}], object))
    np.save(files / "narrow.npy", sequences()[:, :, :2])
    np.savez(files / "lstm.npz", **(state_dict() | {"weight_hr_l0": np.ones((3, 3))}))
    np.savez(files / "none.npz", weight=np.ones(3))
    save_file(state_dict(), files / "other.safetensors")
    quantized(files)
    return files


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("calibrate absent.npz two.npy -o out", "absent.npz: No such file"),
        ("calibrate broken.npz two.npy -o out", "broken.npz is not a .npz file of numbers"),
        ("calibrate broken.safetensors two.npy -o out", "broken.safetensors is not a .safetensors file"),
        ("calibrate note.txt two.npy -o out", "note.txt has the suffix '.txt', expected .safetensors, .npz, .npy"),
        ("calibrate lstm.npz two.npy -o out", "gru weights: there is weight_hr_l0, expected only"),
        ("calibrate none.npz two.npy -o out", "none.npz has no GRU weights, expected names such as weight_ih_l0"),
        ("calibrate weights.safetensors broken.npy -o out", "broken.npy is not a .npy file"),
        ("calibrate weights.safetensors objects.npz -o out", "objects.npz is not a .npz file of numbers"),
        ("calibrate weights.safetensors named.npz -o out", "has x, y, expected x and, if wanted, h0 and lengths"),
        ("calibrate weights.safetensors lengths.npz -o out", "leave the padding out"),
        ("calibrate weights.safetensors narrow.npy -o out", "x has shape [20, 3, 2], expected [T, B, C] with C = 5"),
        ("calibrate weights.safetensors two.npy -o out --bits 7", "gru config: bits is 7, expected 8 or 16"),
        ("calibrate weights.safetensors two.npy -o out --pipeline fast", "pipeline is 'fast', expected 'staged' or"),
        ("calibrate weights.safetensors two.npy -o out --method max", "method is 'max', expected one of 'minmax'"),
        ("calibrate weights.safetensors two.npy -o out --config config.json", "config.json is not text"),
        ("calibrate weights.safetensors two.npy -o absent/out", "absent for out, expected one"),
        ("calibrate weights.safetensors two.npy -o out --json absent/out", "there is no folder"),
        ("calibrate weights.safetensors -o out", "SAMPLES"),
        ("calibrate weights.safetensors two.npy", "--output"),
        ("run weights.safetensors two.npy -o out.npz", "weights.safetensors has format None"),
        ("run gru.safetensors two.npy -o out.txt", "out.txt has the suffix '.txt', expected .safetensors or .npz"),
        ("run gru.safetensors two.npy -o absent/out.npz", "there is no folder"),
        ("run gru.safetensors two.npy -o out.npz --json absent/out", "there is no folder"),
        ("run gru.safetensors narrow.npy -o out.npz", "expected [T, B, C] with C = 5"),
        ("run gru.safetensors two.npy -o out.npz --steps 0", "--steps"),
        ("report gru.safetensors other.safetensors two.npy", "expected (5, 7, 7, 2, 1)"),
        ("report gru.safetensors weights.safetensors lengths.npz", "leave the padding out"),
        ("report gru.safetensors weights.safetensors narrow.npy", "expected [T, B, C] with C = 5"),
        ("report gru.safetensors weights.safetensors two.npy --json absent/out", "there is no folder"),
        ("report gru.safetensors weights.safetensors two.npy --plot out.bmp", "out.bmp"),
        ("golden gru.safetensors narrow.npy -o out", "expected [T, B, C] with C = 5"),
        ("golden gru.safetensors two.npy -o absent/out", "absent for out, expected one"),
        ("golden gru.safetensors two.npy -o out --json absent/out", "there is no folder"),
        ("golden weights.safetensors two.npy -o out", "weights.safetensors has format None"),
        ("export gru.safetensors -o out.c", "expected a name that ends in .h"),
        ("export gru.safetensors -o out.h --name 3x", "name is '3x', expected a C identifier"),
        ("export gru.safetensors -o absent/out.h", "there is no folder"),
        ("export gru.safetensors -o out.h --json absent/out", "there is no folder"),
        ("export gru.safetensors -o out.h --tables fast", "tables is 'fast', expected 'exact' or 'interp'"),
    ],
)
def test_errors_are_one_line(bad, arguments, words, capsys, monkeypatch):
    monkeypatch.chdir(bad)
    capsys.readouterr()
    before = sorted(path.name for path in bad.iterdir())
    assert main(["gru", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("qcore: error: ") and captured.err.count("\n") == 1
    assert words in captured.err
    assert sorted(path.name for path in bad.iterdir()) == before


@pytest.mark.parametrize(
    "arguments", [[], ["calibrate"], ["run"], ["report"], ["golden"], ["export"]], ids=lambda a: " ".join(a) or "gru"
)
def test_help_has_examples(arguments, capsys):
    assert main(["gru", *arguments, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out
