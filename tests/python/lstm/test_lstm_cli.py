"""`qcore lstm`: what it writes and prints, from files to files."""

import importlib.util
import json
from dataclasses import asdict

import numpy as np
import pytest

from qcore.cli import main
from qcore.lstm import TENSORS, Calibrator, Config, LstmWeights, QuantLSTM, verify_golden


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "encoder.weight_ih_l0": rng.normal(0, 0.4, (28, 5)),
        "encoder.weight_hh_l0": rng.normal(0, 0.3, (28, 7)),
        "encoder.bias_ih_l0": rng.normal(0, 0.2, 28),
    }
    np.savez(tmp_path / "weights.npz", **arrays)
    np.savez(tmp_path / "samples.npz", x=rng.normal(0, 1, (20, 3, 5)), c0=rng.normal(0, 0.2, (1, 3, 7)))
    return tmp_path


def test_calibrate_and_run(files, capsys):
    model = files / "lstm.safetensors"
    command = ["lstm", "calibrate", str(files / "weights.npz"), str(files / "samples.npz"), "-o", str(model)]
    assert main([*command, "--bits", "16", "--name", "encoder"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("QuantLSTM(5, 7, layers=1, x 16 bits") and "c_tanh" in text
    assert (
        main(["lstm", "run", str(model), str(files / "samples.npz"), "-o", str(files / "out.npz"), "--steps", "7"]) == 0
    )
    assert "y [20, 3, 7], h [1, 3, 7], c [1, 3, 7]" in capsys.readouterr().out
    with (
        np.load(files / "samples.npz") as given,
        np.load(files / "weights.npz") as floats,
        np.load(files / "out.npz") as out,
    ):
        weights = LstmWeights.from_state_dict({name.removeprefix("encoder."): floats[name] for name in floats.files})
        q = Calibrator(weights).observe(given["x"], None, given["c0"]).finish(Config(bits=16))
        expected = q(given["x"].astype(np.float32), None, given["c0"].astype(np.float32))
        for name, wanted in zip(("y", "h", "c"), expected, strict=True):
            np.testing.assert_array_equal(out[name], wanted)
    assert QuantLSTM.load(model).config == Config(bits=16)


def test_json_of_calibrate_and_run(files, capsys):
    model, out, file = (str(files / name) for name in ("lstm.safetensors", "out.npz", "found.json"))
    command = ["lstm", "calibrate", str(files / "weights.npz"), str(files / "samples.npz"), "-o", model]
    assert main([*command, "--json", file]) == 0
    q, written = QuantLSTM.load(model), json.loads((files / "found.json").read_text())
    assert written["repr"] == repr(q) and Config.from_json(json.dumps(written["config"])) == q.config
    assert [row["tensor"] for row in written["tensors"]] == list(TENSORS)
    row = next(each for each in written["tensors"] if each["tensor"] == "c")
    form = q.format("c")
    assert (row["bits"], row["exponent"], row["zero_point"]) == (form.bits, form.exponent, form.zero_point)
    assert main(["lstm", "run", model, str(files / "samples.npz"), "-o", out, "--json", file]) == 0
    arrays = {name: {"shape": shape, "dtype": "float32"} for name, shape in (("y", [20, 3, 7]), ("h", [1, 3, 7]))}
    written = json.loads((files / "found.json").read_text())
    assert written == {"output": out, "arrays": arrays | {"c": arrays["h"]}}


def test_report_and_golden(files, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    model, weights, samples = (str(files / name) for name in ("lstm.safetensors", "weights.npz", "samples.npz"))
    assert main(["lstm", "calibrate", weights, samples, "-o", model]) == 0
    capsys.readouterr()
    outputs = ["--json", str(files / "report.json")]
    if importlib.util.find_spec("matplotlib"):
        outputs += ["--plot", str(files / "report.svg")]
    assert main(["lstm", "report", model, weights, samples, *outputs]) == 0
    text, q = capsys.readouterr().out, QuantLSTM.load(model)
    with np.load(samples) as given, np.load(weights) as floats:
        x, c0 = given["x"], given["c0"]
        found = LstmWeights.from_state_dict({name.removeprefix("encoder."): floats[name] for name in floats.files})
    expected = q.report(x, None, c0, found)
    assert (files / "report.json").read_text() == expected.to_json()
    assert repr(q) in text
    assert f"{expected.row('c').sqnr:.1f}" in next(line for line in text.splitlines() if line.split()[:2] == ["0", "c"])
    if len(outputs) > 2:
        assert "SQNR of h in dB" in (files / "report.svg").read_text(encoding="utf-8")
    golden = str(files / "golden.safetensors")
    assert main(["lstm", "golden", model, samples, "-o", golden, "--json", str(files / "golden.json")]) == 0
    check = verify_golden(golden)
    assert f"golden.safetensors: {check}\n" in capsys.readouterr().out
    assert json.loads((files / "golden.json").read_text()) == {"output": golden} | asdict(check)


@pytest.mark.parametrize("arguments", [[], ["calibrate"], ["run"], ["report"], ["golden"]], ids=" ".join)
def test_help_has_examples(arguments, capsys):
    assert main(["lstm", *arguments, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("calibrate weights.npz samples.npz -o out.safetensors --bits 7", "lstm config: bits is 7, expected 8 or 16"),
        ("calibrate weights.npz samples.npz -o out.safetensors --name no", "has no no.weight_ih_l0, expected a name"),
        ("calibrate weights.npz other.npz -o out.safetensors", "expected x and, if wanted, h0, c0 and lengths"),
        ("calibrate weights.npz samples.npz -o out.h", "--output is 'out.h', expected a name that ends with .safeten"),
        ("golden samples.npz samples.npz -o out.npz", "--output is 'out.npz', expected a name that ends with .s"),
        ("calibrate weights.txt samples.npz -o out.safetensors", "lstm: "),
        ("calibrate weights.npz samples.npz -o out.safetensors --json absent/out.json", "lstm: there is no folder"),
        ("report samples.npz weights.npz samples.npz", "lstm: samples.npz is not an LSTM's safetensors file"),
        ("report samples.npz weights.npz samples.npz --plot absent/out.png", "lstm: there is no folder"),
        ("golden samples.npz samples.npz -o absent/out", "lstm: there is no folder"),
        ("calibrate weights.npz lengths.npz -o out.safetensors", "leave the padding out"),
        ("run samples.npz samples.npz -o out.npz --json absent/out.json", "lstm: there is no folder"),
        (
            "run samples.npz samples.npz -o out.txt",
            "lstm: out.txt has the suffix '.txt', expected .safetensors",
        ),
    ],
)
def test_errors_are_one_line(files, arguments, words, capsys, monkeypatch):
    monkeypatch.chdir(files)
    np.savez(files / "other.npz", x=np.zeros((2, 1, 5)), z=np.zeros(2))
    np.savez(files / "lengths.npz", x=np.zeros((2, 1, 5)), lengths=np.array([1], np.int32))
    (files / "weights.txt").write_text("none")
    assert main(["lstm", *arguments.split()]) != 0
    error = capsys.readouterr().err
    assert words in " ".join(error.split())
    assert not (files / "out.safetensors").exists()
