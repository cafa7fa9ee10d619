"""`qcore generate`, `qcore evaluate` and `qcore bench model`: what they print and write, and one-line errors."""

import json
import os
import signal
import subprocess
import sys

import language_models
import pytest
import torch

import qcore.language_model as lm
from qcore.cli import main
from qcore.language_model.bench_command import Row

TEXT = "the cat sat on a mat and the dog ran far away . the red ball in the sun . " * 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return language_models.write(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_generate_writes_text_to_stdout_and_the_rest_to_stderr(folder, tmp_path, capsys):
    file = tmp_path / "measured.json"
    arguments = ["generate", str(folder), "the cat", "--max-new-tokens", "12", "--no-fuse", "--json", str(file)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    expected = lm.generate(lm.load_model(folder).model, lm.load_tokenizer(folder), "the cat", max_new_tokens=12)
    assert captured.out == expected.text + "\n"
    written = json.loads(file.read_text())
    assert written["schema"] == "qcore.generate/1"
    assert written["model"]["method"] == "float" and written["model"]["name"] == "model"
    assert written["generation"]["text"] == expected.text and written["generation"]["tokens"] == expected.tokens
    assert written["memory"]["peak"] >= written["memory"]["resident"] * 0.99 > 0
    assert captured.err.startswith("float, not fused (not asked for); loaded in ")
    assert f"prompt: {expected.prompt_tokens} tokens" in captured.err and "MB resident" in captured.err
    assert captured.err.count("\n") == 1


def test_generate_quantizes_while_loading_and_fuses(folder, capsys):
    arguments = ["generate", str(folder), "the cat", "--bits", "4", "--max-new-tokens", "4"]
    assert main(arguments) == 0
    assert capsys.readouterr().err.startswith("4 bits, fused; loaded in ")
    assert main([*arguments, "--no-fuse"]) == 0
    assert capsys.readouterr().err.startswith("4 bits, not fused (not asked for)")


def test_evaluate_prints_and_writes_what_python_measures(folder, text, tmp_path, capsys):
    file = tmp_path / "quality.json"
    arguments = ["--bits", "4", "--against", str(folder), "--context", "32", "--tokens", "120", "--json", str(file)]
    assert main(["evaluate", str(folder), "--text", str(text), *arguments]) == 0
    shown = capsys.readouterr().out
    tokens = lm.load_tokenizer(folder)(TEXT)["input_ids"][:120]
    expected = lm.evaluate(lm.load_model(folder, bits=4).model, tokens, against=lm.load_model(folder).model, context=32)
    written = json.loads(file.read_text())
    assert written["schema"] == "qcore.evaluate/1"
    assert written["text"] == {"name": "text.txt", "bytes": len(TEXT), "tokens": 120}
    assert written["evaluation"]["tokens"] == 119
    assert written["evaluation"]["perplexity"] == expected.perplexity
    comparison = written["evaluation"]["comparison"]
    assert comparison["kl_divergence"] == expected.comparison.kl_divergence > 0
    size = lm.load_model(folder, bits=4).model.get_memory_footprint()
    for key, about in (("model", {"bits": 4, "compute": ["int8"], "weight_bytes": size}), ("against", {"compute": []})):
        assert written[key]["dtype"] == "float32" and written[key].items() >= about.items()
    assert f"model: 4 bits, compute int8, float32 between the layers, {size / 1e6:.1f} MB\n" in shown
    assert "\n--against                model: float, float32 between the layers, " in shown
    assert f"{expected.perplexity:.4f}" in shown
    assert f"{expected.comparison.kl_divergence:.6f}" in shown
    assert f"{expected.comparison.same_first_choice:.2%}" in shown


def test_evaluate_without_a_reference(folder, text, capsys):
    assert main(["evaluate", str(folder), "--text", str(text), "--stride", "8", "--context", "16"]) == 0
    shown = capsys.readouterr().out
    assert "perplexity" in shown and "KL" not in shown and "--against" not in shown and " windows, " in shown
    assert main(["evaluate", str(folder), "--text", str(text), "--tokens", "9"]) == 0
    assert " 8 in 1 window, " in capsys.readouterr().out


def test_evaluate_runs_models_of_bfloat16_in_float32(folder, text, tmp_path, capsys):
    """Rounding between the layers is not the weights'."""
    model = lm.load_model(folder).model
    model.bfloat16().save_pretrained(tmp_path / "half")
    for file in folder.glob("tokenizer*"):
        (tmp_path / "half" / file.name).write_bytes(file.read_bytes())
    half, file = str(tmp_path / "half"), tmp_path / "quality.json"
    assert lm.load_model(half).model.dtype == torch.bfloat16
    arguments = ["evaluate", half, "--text", str(text), "--tokens", "40", "--against", half, "--json", str(file)]
    assert main(arguments) == 0
    written = json.loads(file.read_text())
    assert (written["model"]["dtype"], written["against"]["dtype"]) == ("float32", "float32")
    assert written["evaluation"]["comparison"]["kl_divergence"] == 0
    assert main([*arguments, "--dtype", "bfloat16"]) == 0
    written = json.loads(file.read_text())
    assert (written["model"]["dtype"], written["against"]["dtype"]) == ("bfloat16", "float32")
    assert written["evaluation"]["comparison"]["kl_divergence"] > 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json", "absent/quality.json"], "--json: absent is no folder, expected one for quality.json"),
        (["--against", "absent"], "absent: No such file or directory"),
    ],
)
def test_evaluate_checks_its_arguments_before_it_loads_a_model(folder, text, monkeypatch, capsys, arguments, words):
    monkeypatch.setattr("qcore.language_model.loading.load_model", lambda *given, **options: pytest.fail("loaded"))
    assert main(["evaluate", str(folder), "--text", str(text), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_bench_model_measures_each_in_its_own_process(folder, tmp_path, capsys):
    file = tmp_path / "bench.json"
    names = ("qcore_unfused", "torch_float32")
    chosen = [argument for name in names for argument in ("--only", name)]
    sizes = ["--prompt-tokens", "12", "--new-tokens", "4", "--repeats", "1"]
    assert main(["bench", "model", str(folder), *sizes, *chosen, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    written = json.loads(file.read_text())
    assert written["schema"] == "qcore.bench.model/1"
    assert written["settings"]["folder"] == "model" and written["settings"]["prompt_tokens"] == 12
    assert [row["name"] for row in written["implementations"]] == list(names)
    for row in written["implementations"]:
        assert len(row["runs"]) == 1 and not row["unavailable"]
        for run in row["runs"]:
            assert 0 < run["imported_bytes"] <= run["loaded_bytes"] * 1.01 <= run["peak_bytes"] * 1.02
            assert run["prefill_rate"] > 0 and run["decode_rate"] > 0 and run["load_seconds"] > 0
        assert row["median"] == row["runs"][0]
        assert f"{row['median']['decode_rate']:.1f}" in shown


def test_the_median_of_runs_is_each_measurements_own():
    row = Row("qcore", [{"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 5.0}, {"a": 2.0, "b": 9.0}])
    assert row.median() == {"a": 2.0, "b": 5.0}
    assert Row("qcore").median() == {}


def test_bench_model_says_what_it_could_not_measure(folder, tmp_path, capsys):
    lm.load_model(folder, bits=4).model.save_pretrained(tmp_path / "packed")
    assert main(["bench", "model", str(tmp_path / "packed"), "--only", "torch_float32", "--repeats", "1"]) == 2
    shown = capsys.readouterr().out
    assert "torch float32: not measured: the model is quantized (qcore), and --float names no float model" in shown


def test_commands_do_not_load_torch_for_their_help():
    code = "import sys; from qcore.cli import main; main(['generate', '--help']); main(['bench', 'model', '--help'])"
    code += "; print([name for name in ('torch', 'transformers', 'numpy.testing') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: ["generate", str(a / "absent"), "the cat"], "absent: No such file or directory"),
        (lambda a: ["generate", str(a), "the cat"], "has no config.json and 0 .gguf files"),
        (lambda a: ["generate", str(a / "model"), " "], "prompt is empty, expected text"),
        (lambda a: ["generate", str(a / "model"), "cat", "--bits", "3"], "bits is 3, expected one of"),
        (lambda a: ["generate", str(a / "model"), "cat", "--chat"], "no chat template"),
        (lambda a: ["generate", str(a / "model"), "cat", "--dtype", "int8"], "dtype is 'int8', expected one of"),
        (lambda a: ["generate", str(a / "mute"), "the cat"], "no tokenizer that transformers can load"),
        (lambda a: ["evaluate", str(a / "model"), "--text", str(a / "none.txt")], "none.txt: No such file"),
        (lambda a: ["evaluate", str(a / "model"), "--text", str(a / "empty.txt")], "empty.txt has no text"),
        (lambda a: ["evaluate", str(a / "model"), "--text", str(a / "latin.txt")], "not UTF-8: byte 3 is 0xe9"),
        (lambda a: ["evaluate", str(a / "plain"), "--text", str(a / "short.txt")], "has 1 tokens, expected 2"),
        (
            lambda a: ["evaluate", str(a / "model"), "--text", str(a / "good.txt"), "--context", "99"],
            "context is 99, expected 64 or less",
        ),
        (lambda a: ["evaluate", str(a / "model")], "--text"),
        (lambda a: ["bench", "model", str(a / "model"), "--only", "llama.cpp"], "'llama.cpp' is not one of"),
        (lambda a: ["bench", "model", str(a)], "has no config.json"),
    ],
)
def test_errors_are_one_line(folder, tmp_path, capsys, change, words):
    (tmp_path / "model").symlink_to(folder)
    for name in ("mute", "plain"):
        (tmp_path / name).mkdir()
        for file in folder.iterdir():
            if name == "plain" or not file.name.startswith("tokenizer"):
                (tmp_path / name / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((tmp_path / "plain" / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (tmp_path / "plain" / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name, content in (("empty", b" \n"), ("latin", b"caf\xe9"), ("short", b"a"), ("good", b"the cat sat")):
        (tmp_path / f"{name}.txt").write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    assert main(change(tmp_path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("qcore: error: ") and captured.err.count("\n") == 1
    assert words in captured.err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupt_ends_with_a_line(folder, tmp_path):
    long = language_models.write(tmp_path / "long", max_position_embeddings=100_000, eos_token_id=None)
    command = [sys.executable, "-m", "qcore", "generate", str(long), "the cat", "--max-new-tokens", "90000"]
    process = subprocess.Popen(
        [*command, "--no-fuse"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUTF8": "1"},
        # A shell's background job inherits that the signal is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    process.stdout.read(1)  # it generates now
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    lines = errors.decode().splitlines()
    assert lines[-1] == "qcore: interrupted" and "tokens/s" in lines[-2] and len(lines) == 2
