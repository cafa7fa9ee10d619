"""`qcore inspect`, `compare` and `quantize`: what they print and write, resuming, memory, one-line errors."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from checkpoint_files import AWQ, model, packed_folder, sharded
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import qcore
from qcore.cli import app, main
from qcore.formats import open_checkpoint
from qcore.formats.checkpoint import chunks
from qcore.formats.checkpoint.options import NAMES
from qcore.formats.checkpoint.partial_file import PartialFile
from qcore.formats.checkpoint.quantizing import Options, plan, quantize_checkpoint

QUANTIZED = {"layers.0.weight", "layers.1.weight", "conv.weight"}


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def files(tmp_path):
    save_file(model(), tmp_path / "m.safetensors")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_inspect(files):
    done = run("inspect", files / "m.safetensors", "--json", files / "rows.json")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["layers.1.weight", "float16", "9", "x", "70", "16", "1,260"] in lines
    assert "7 tensors, 0 quantized;" in done.stdout
    rows = json.loads((files / "rows.json").read_text())["tensors"]
    assert {row["name"]: tuple(row["shape"]) for row in rows} == {name: a.shape for name, a in model().items()}
    assert sum(row["nbytes"] for row in rows) == sum(array.nbytes for array in model().values())
    done = run("inspect", packed_folder(files / "awq", AWQ))
    assert ["layer.weight", "awq", "gemm", "16", "x", "64", "4", "32", "592"] in [
        line.split() for line in done.stdout.splitlines()
    ]


def test_names_do_not_reach_the_terminal_raw(tmp_path):
    save_file({"a\x1b[31mb\n": np.zeros(1)}, tmp_path / "m.safetensors")
    done = run("inspect", tmp_path)
    assert r"a\x1b[31mb\n" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("source", ["m.safetensors", "shards"])
@pytest.mark.parametrize("piece", [None, 130])
def test_quantize_equals_quantizing_whole_tensors(files, monkeypatch, source, piece):
    if piece is not None:  # a few rows at a time
        monkeypatch.setattr(chunks, "_PIECE_ITEMS", piece)
        monkeypatch.setattr(chunks, "_PIECE_BYTES", piece)
    sharded(files / "shards", model())
    options = {"bits": 8, "block_size": 16, "scheme": "asymmetric", "method": "mse", "scale_dtype": "float16"}
    flags = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", value)]
    done = run("quantize", files / source, files / "o.safetensors", *flags)
    assert done.exit_code == 0
    assert "3 tensors in 8 bits, 4 as they were" in done.stdout
    loaded = qcore.load(files / "o.safetensors")
    assert set(loaded) == set(model())
    for name, array in model().items():
        if name in QUANTIZED:
            assert loaded[name] == qcore.quantize(array, **options)
        else:
            assert loaded[name].dtype == array.dtype
            assert np.array_equal(loaded[name], array)
    assert sorted(path.name for path in files.iterdir()) == ["m.safetensors", "o.safetensors", "shards"]
    load_file(files / "o.safetensors")  # the safetensors package reads it


@pytest.mark.parametrize("piece", [None, 130])
@pytest.mark.parametrize(
    "options",
    [{"encoding": name} for name in NAMES]
    + [{"encoding": "q4_k", "method": "rtn"}]
    + [
        {"bits": bits, "block_size": 16, "scheme": scheme, "scale_dtype": dtype, "method": "mse"}
        for bits in (2, 3, 5, 6)
        for scheme, dtype in (("symmetric", "float16"), ("asymmetric", "float32"))
    ],
    ids=str,
)
def test_encoded_weights_equal_those_of_whole_tensors(files, monkeypatch, options, piece):
    if piece is not None:
        monkeypatch.setattr(chunks, "_PIECE_ITEMS", piece)
    flags = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", value)]
    shown = options.get("encoding") or f"{options['bits']} bits"
    done = run("quantize", files / "m.safetensors", files / "o.safetensors", *flags, "--dry-run")
    assert f"{shown}, blocks of " in done.stdout
    assert f"as it is: {shown}: a convolution" in done.stdout
    done = run("quantize", files / "m.safetensors", files / "o.safetensors", *flags)
    assert f"2 tensors in {shown}, 5 as they were" in done.stdout
    make = qcore.quantize_encoded if "encoding" in options else qcore.quantize
    loaded = qcore.load(files / "o.safetensors")
    for name, array in model().items():
        if name in QUANTIZED - {"conv.weight"}:
            assert loaded[name] == make(array, **options)
        else:
            assert np.array_equal(loaded[name], array)


def test_samples_weigh_the_errors_of_encodings(files):
    rows = np.random.default_rng(5).standard_normal((50, 70)).astype(np.float32)
    np.savez(files / "x.npz", **{"layers.1.weight": rows * np.linspace(0.1, 5, 70)})
    flags = ["--encoding", "q4_k", "--method", "awq", "--samples", files / "x.npz"]
    assert run("quantize", files / "m.safetensors", files / "o.safetensors", *flags).exit_code == 0
    loaded, samples = qcore.load(files / "o.safetensors"), np.load(files / "x.npz")["layers.1.weight"]
    weights = model()
    expected = qcore.quantize_encoded(weights["layers.1.weight"], "q4_k", method="awq", samples=samples)
    assert loaded["layers.1.weight"] == expected != qcore.quantize_encoded(weights["layers.1.weight"], "q4_k")
    assert loaded["layers.0.weight"] == qcore.quantize_encoded(weights["layers.0.weight"], "q4_k")
    np.savez(files / "x.npz", **{"layers.1.weight": rows[:, :70]})
    flags = ["--bits", "3", "--method", "gptq", "--samples", files / "x.npz"]
    assert run("quantize", files / "m.safetensors", files / "p.safetensors", *flags).exit_code == 0
    loaded = qcore.load(files / "p.safetensors")["layers.1.weight"]
    wide = weights["layers.1.weight"].astype(np.float32)
    assert loaded == qcore.quantize(wide, bits=3, method="gptq", samples=rows)


@pytest.mark.parametrize(
    ("flags", "quantized"),
    [
        ([], QUANTIZED),
        (["--exclude", "layers.0.*"], QUANTIZED - {"layers.0.weight"}),
        (["--include", "layers.*"], {"layers.0.weight", "layers.1.weight"}),
        (["--include", "embed*", "--include", "norm*"], {"embed.weight", "norm.weight"}),
        (["--include", "*", "--exclude", "conv*"], {"embed.weight", "norm.weight"} | QUANTIZED - {"conv.weight"}),
    ],
    ids=lambda names: " ".join(sorted(names)),  # a set's own order changes from run to run
)
def test_which_tensors_are_quantized(files, flags, quantized):
    done = run("quantize", files / "m.safetensors", files / "o.safetensors", *flags, "--dry-run")
    assert f"{len(quantized)} of 7 tensors quantized" in done.stdout
    assert {line.split()[0] for line in done.stdout.splitlines() if "4 bits, blocks of 32" in line} == quantized
    assert not (files / "o.safetensors").exists()
    assert run("quantize", files / "m.safetensors", files / "o.safetensors", *flags).exit_code == 0
    with open_checkpoint(files / "o.safetensors") as checkpoint:
        assert {name for name in checkpoint if checkpoint.info(name).quantized} == quantized


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("embeddings.word_embeddings.weight", True),
        ("model.embed_tokens.weight", True),
        ("transformer.wte.weight", True),
        ("token_embd.weight", True),
        ("encoder.layer.0.attention.output.LayerNorm.weight", True),
        ("model.layers.0.input_layernorm.weight", True),
        ("blk.0.attn_norm.weight", True),
        ("h.0.ln_1.weight", True),
        ("decoder.relative_attention_bias.weight", True),
        ("model.layers.0.self_attn.q_proj.weight", False),
        ("encoder.layer.0.output.dense.weight", False),
        ("lm_head.weight", False),
        ("member.normal.unbiased.weight", False),
    ],
)
def test_the_default_rule(tmp_path, name, kept):
    save_file({name: np.ones((2, 4), np.float32)}, tmp_path / "m.safetensors")
    (job,) = plan(open_checkpoint(tmp_path), Options())
    assert job.choice.quantize is not kept


def test_compare(files):
    run("quantize", files / "m.safetensors", files / "o.safetensors", "--exclude", "conv*")
    arguments = [files / "m.safetensors", files / "o.safetensors", "--json", files / "e.json"]
    done = run("compare", *arguments)
    assert done.exit_code == 0
    rows = {row["name"]: row for row in json.loads((files / "e.json").read_text())["tensors"]}
    loaded = qcore.load(files / "o.safetensors")
    for name, array in model().items():
        if name not in QUANTIZED - {"conv.weight"}:
            assert rows[name]["relative_l2"] == rows[name]["max_error"] == 0
            continue
        gap = array.astype(np.float64) - loaded[name].dequantize()
        assert rows[name]["relative_l2"] == pytest.approx(np.linalg.norm(gap) / np.linalg.norm(array.astype(float)))
        assert rows[name]["max_error"] == np.abs(gap).max()
        assert f"{rows[name]['relative_l2']:.3g}" in done.stdout
    save_file({"ids": np.arange(4), "new": np.zeros(1)}, files / "other.safetensors")
    done = run("compare", files / "m.safetensors", files / "other.safetensors")
    assert "only in" in done.stdout and "new" in done.stdout and "norm.weight" in done.stdout


def test_a_reordered_weight_is_listed_and_compared_in_the_matrixs_own_order(tmp_path):
    rng = np.random.default_rng(0)
    matrix, order = rng.standard_normal((6, 32), dtype=np.float32), rng.permutation(32)
    weight = qcore.ReorderedTensor(
        qcore.quantize(matrix[:, order], bits=8, block_size=16, scale_dtype="float32"), order
    )
    save_file({"w": matrix}, tmp_path / "float.safetensors")
    qcore.save(tmp_path / "w.safetensors", {"w": weight})
    done = run("inspect", tmp_path / "w.safetensors")
    nbytes = 6 * 32 + 6 * 2 * 4 + 32 * 4  # codes, scales, order
    assert ["w", "qcore", "6", "x", "32", "8", "16", str(nbytes)] in [line.split() for line in done.stdout.splitlines()]
    done = run("compare", tmp_path / "float.safetensors", tmp_path / "w.safetensors", "--json", tmp_path / "e.json")
    assert done.exit_code == 0
    (row,) = json.loads((tmp_path / "e.json").read_text())["tensors"]
    gap = matrix.astype(np.float64) - weight.dequantize()
    assert row["max_error"] == np.abs(gap).max()
    assert (
        row["relative_l2"] == pytest.approx(np.linalg.norm(gap) / np.linalg.norm(matrix)) and row["relative_l2"] < 0.01
    )


class Killed(BaseException):
    """Interrupt as SIGINT does, at a given tensor."""


def quantize_until(files, monkeypatch, name, **options):
    """Run until the named tensor is about to be entered in the journal."""
    finish = PartialFile.finish_tensor

    def stop(self, tensor, writer):
        if tensor == name:
            raise Killed
        finish(self, tensor, writer)

    with monkeypatch.context() as patch, open_checkpoint(files / "m.safetensors") as checkpoint:
        patch.setattr(PartialFile, "finish_tensor", stop)
        with pytest.raises(Killed):
            quantize_checkpoint(checkpoint, files / "o.safetensors", Options(**options))
    assert not (files / "o.safetensors").exists()
    assert (files / "o.safetensors.partial").exists()
    return list(open_checkpoint(files / "m.safetensors")).index(name)


def test_an_interrupted_run_goes_on(files, monkeypatch):
    run("quantize", files / "m.safetensors", files / "whole.safetensors")
    done = quantize_until(files, monkeypatch, "layers.0.weight")
    assert done > 1
    with open(files / "o.safetensors.partial.journal", "ab") as journal:
        journal.write(b'{"tensor": "norm.wei')  # killed within a line
    done_again = quantize_until(files, monkeypatch, "layers.1.weight")
    assert done_again > done
    last = run("quantize", files / "m.safetensors", files / "o.safetensors")
    assert f"{done_again} tensors taken over from an unfinished run" in last.stdout
    assert (files / "o.safetensors").read_bytes() == (files / "whole.safetensors").read_bytes()
    assert sorted(path.name for path in files.iterdir()) == ["m.safetensors", "o.safetensors", "whole.safetensors"]


@pytest.mark.parametrize("change", ["options", "input"])
def test_another_input_or_other_options_start_anew(files, monkeypatch, change):
    quantize_until(files, monkeypatch, "layers.1.weight")
    if change == "input":
        save_file(model(seed=1), files / "m.safetensors")
    flags = ["--block-size", "8"] if change == "options" else []
    done = run("quantize", files / "m.safetensors", files / "o.safetensors", *flags)
    assert done.exit_code == 0
    assert "started anew" in done.stdout
    assert "taken over" not in done.stdout
    run("quantize", files / "m.safetensors", files / "whole.safetensors", *flags)
    assert (files / "o.safetensors").read_bytes() == (files / "whole.safetensors").read_bytes()


def test_damaged_work_is_done_again(files, monkeypatch):
    run("quantize", files / "m.safetensors", files / "whole.safetensors")
    finished = quantize_until(files, monkeypatch, "layers.1.weight")
    partial = files / "o.safetensors.partial"
    content = bytearray(partial.read_bytes())
    first = next(iter(open_checkpoint(files / "m.safetensors")))
    with open_checkpoint(files / "whole.safetensors") as whole:
        entry = whole.entry(first)
        section = entry.section if first not in QUANTIZED else entry.sections["codes"]
    content[section.offset] ^= 1
    partial.write_bytes(content)
    done = run("quantize", files / "m.safetensors", files / "o.safetensors")
    assert f"{finished - 1} tensors taken over" in done.stdout
    assert (files / "o.safetensors").read_bytes() == (files / "whole.safetensors").read_bytes()


def test_a_killed_process_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    save_file({f"l.{n:02}.weight": rng.standard_normal((64, 512), dtype=np.float32) for n in range(40)}, tmp_path / "m")
    os.rename(tmp_path / "m", tmp_path / "m.safetensors")
    output, journal = tmp_path / "o.safetensors", tmp_path / "o.safetensors.partial.journal"
    # A tensor in 20 ms, so that the kill is surely in the middle.
    code = (
        "import sys, time\nfrom qcore.cli import main\n"
        "from qcore.formats.checkpoint.partial_file import PartialFile as P\n"
        "f = P.finish_tensor\nP.finish_tensor = lambda *a: (time.sleep(0.02), f(*a))\nmain(sys.argv[1:])"
    )
    arguments = ["quantize", str(tmp_path / "m.safetensors"), str(output)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    deadline = time.monotonic() + 60
    while not journal.exists() or len(journal.read_bytes().splitlines()) < 5:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists()
    done = run(*arguments)
    assert done.exit_code == 0
    assert "taken over from an unfinished run" in done.stdout
    run("quantize", tmp_path / "m.safetensors", tmp_path / "whole.safetensors")
    assert output.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_ctrl_c_ends_a_search_at_once_and_says_what_is_kept(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"l.{n}.weight": rng.standard_normal((4096 if n else 8, 4096), dtype=np.float32) for n in range(3)}
    save_file(tensors, tmp_path / "m.safetensors")
    code = "import sys\nfrom qcore.cli import main\nsys.exit(main(sys.argv[1:]))"
    arguments = ["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors"), "--method", "mse"]
    # The reference takes minutes, so that the interrupt is surely in the middle of a piece.
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"QCORE_FORCE_KERNEL": "quantize=reference"},
        # A shell's background job inherits that the signal is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    journal = tmp_path / "o.safetensors.partial.journal"
    deadline = time.monotonic() + 60
    while not journal.exists() or len(journal.read_bytes().splitlines()) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "qcore: interrupted: 1 of 3 tensors are kept in" in text and "run the same command to resume" in text
    assert time.monotonic() - began < 5  # below a second on an idle machine


def test_the_suffix_tells_the_format(files):
    done = run("quantize", files / "m.safetensors", files / "o.gguf", "--json", files / "result.json")
    assert done.exit_code == 0
    assert (files / "o.gguf").read_bytes().startswith(b"GGUF")
    assert json.loads((files / "result.json").read_text())["format"] == "gguf"
    plan = run("quantize", files / "m.safetensors", files / "p.gguf", "--dry-run", "--json", files / "plan.json")
    assert plan.exit_code == 0 and not (files / "p.gguf").exists()
    assert {row["name"] for row in json.loads((files / "plan.json").read_text())["tensors"]} == set(model())


def test_names_stay_whole_where_the_output_is_no_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    name = "model.layers.17.a_very_long_name_of_a_module.that_terminals_would_fold.weight"
    save_file({name: np.ones((4, 32), np.float32)}, tmp_path / "m.safetensors")
    assert name in run("inspect", tmp_path / "m.safetensors").stdout
    assert name in run("quantize", tmp_path / "m.safetensors", tmp_path / "o.safetensors", "--dry-run").stdout


def test_two_runs_of_one_output(files):
    held = PartialFile(files / "o.safetensors", b"", 1, "other", {})
    with held:
        done = main(["quantize", str(files / "m.safetensors"), str(files / "o.safetensors")])
    assert done == 2


def test_peak_memory(tmp_path):
    """Below twice the largest tensor plus 100 MB, whatever the size of the file."""
    largest = 32 << 20
    rng = np.random.default_rng(0)
    tensors = {f"l.{n}.weight": rng.standard_normal((2048, 2048), dtype=np.float32) for n in range(4)}
    tensors["big.weight"] = rng.standard_normal((4096, 2048), dtype=np.float32)
    tensors["embed.weight"] = tensors["big.weight"]
    save_file(tensors, tmp_path / "m.safetensors")
    assert tensors["big.weight"].nbytes == largest
    code = (
        "import sys\nfrom qcore.cli import main\nassert main(sys.argv[1:]) == 0\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    arguments = ["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors"), "--bits", "8"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-2]) * 1024 < 2 * largest + 100e6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "absent"], ["absent", "No such file"]),
        (["inspect", "text.txt"], ["text.txt", "safetensors"]),
        (["inspect", "."], ["has no"]),
        (["compare", "m.safetensors", "other.safetensors"], ["no tensor's name in common"]),
        (["compare", "m.safetensors", "shapes.safetensors"], ["'ids' has shape [4]", "[5]"]),
        (["quantize", "m.safetensors", "o", "--bits", "7"], ["bits is 7, expected one of 2, 3, 4, 5, 6, 8"]),
        (["quantize", "m.safetensors", "o", "--encoding", "q9"], ["encoding is 'q9', expected one of 'q2_k', 'q3_k'"]),
        (["quantize", "m.safetensors", "o", "--encoding", "q4_k", "--bits", "4"], ["--bits 4 is given with --encodin"]),
        (["quantize", "m.safetensors", "o", "--encoding", "q4_k", "--block-size", "32"], ["--block-size 32 is given"]),
        (["quantize", "m.safetensors", "o", "--encoding", "q4_k", "--method", "gptq"], ["expected 'rtn', 'mse' or 'a"]),
        (["quantize", "m.safetensors", "o", "--encoding", "q4_k", "--method", "awq"], ["--samples is missing"]),
        *(
            (["quantize", "m.safetensors", "o", "--format", name, *form], [f"--format {name} with {shown}, expected"])
            for name in ("awq", "gptq", "gguf", "onnx")
            for form, shown in ((["--bits", "3"], "3 bits"), (["--encoding", "q6_k"], "q6_k"))
        ),
        (["quantize", "m.safetensors", "o", "--block-size", "0"], ["block_size"]),
        (["quantize", "m.safetensors", "o", "--scheme", "odd"], ["scheme", "'odd'"]),
        (["quantize", "m.safetensors", "o", "--method", "magic"], ["method", "'magic'"]),
        (["quantize", "m.safetensors", "o", "--format", "zip"], ["format", "'zip'"]),
        (["quantize", "m.safetensors", "o", "--format", "onnx", "--scheme", "asymmetric"], ["onnx", "--scheme symm"]),
        (["quantize", "m.safetensors", "o", "--format", "onnx", "--block-size", "24"], ["onnx", "24", "power of 2"]),
        (["quantize", "m.safetensors", "o", "--format", "gguf", "--block-size", "48"], ["gguf", "--block-size 32"]),
        (["quantize", "m.safetensors", "o", "--format", "awq", "--scale-dtype", "float32"], ["--scale-dtype float16"]),
        (["quantize", "m.safetensors", "o.pt"], ["OUT is", "o.pt'", "expected", ".safetensors, .gguf or .onnx"]),
        (["quantize", "m.safetensors", "o.xyz"], ["OUT is", "o.xyz'", "that of a folder, or --format"]),
        (["quantize", "m.safetensors", "model.v2"], ["OUT is", "model.v2'", "expected"]),
        (["quantize", "m.safetensors", "o.gguf", "--format", "qcore"], ["--format is qcore, expected --format gguf"]),
        (["quantize", "m.safetensors", "o.safetensors", "--format", "onnx"], ["expected --format qcore or none"]),
        (["quantize", "m.safetensors", "o", "--include", "no*such"], ["--include 'no*such'", "none of 7"]),
        (["quantize", "m.safetensors", "absent/o"], ["no folder", "absent"]),
        (
            ["quantize", "m.safetensors", "o.safetensors", "--json", "absent/x.json"],
            ["absent/x.json: there is no folder absent, expected one"],
        ),
        (["compare", "m.safetensors", "m.safetensors", "--json", "."], ["it is a folder, expected the name of a"]),
        (
            ["quantize", "m.safetensors", "o2.safetensors", "--format", "foo"],
            ["--format is 'foo', expected one of 'qcore', 'awq', 'gptq', 'gguf', 'onnx'"],
        ),
        (["quantize", "m.safetensors", "m.safetensors"], ["is the input"]),
        (["quantize", "nan.safetensors", "o"], ["'w'", "nan", "[1, 2]"]),
        (["quantize", "quantized.safetensors", "o"], ["'w' is qcore", "expected floats"]),
        (["quantize", "clash.safetensors", "o"], ["w.codes", "taken"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line_and_leave_nothing(files, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(files)
    folder = files / "folder"
    folder.mkdir()
    (files / "text.txt").write_text("hello, this is no checkpoint")
    save_file({"x": np.zeros(3)}, files / "other.safetensors")
    save_file({"ids": np.arange(5)}, files / "shapes.safetensors")
    bad = np.ones((2, 4), np.float32)
    bad[1, 2] = np.nan
    save_file({"w": bad}, files / "nan.safetensors")
    save_file({"w": np.ones((2, 4), np.float32), "w.codes": np.zeros(1)}, files / "clash.safetensors")
    qcore.save("quantized.safetensors", {"w": qcore.quantize(np.ones((2, 4), np.float32))})
    before = {path: path.stat().st_mtime_ns for path in files.iterdir()}
    if arguments == ["inspect", "."]:
        monkeypatch.chdir(folder)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("qcore: error: ")
    assert captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err
    assert {path: path.stat().st_mtime_ns for path in files.iterdir()} == before


def test_a_cluster_needs_dask(files, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["quantize", str(files / "m.safetensors"), str(files / "o"), "--dask", "tcp://localhost:8786"]) == 2
    assert capsys.readouterr().err == (
        "qcore: error: quantize: --dask needs the package distributed: pip install 'libqcore[dask]'\n"
    )
    assert not (files / "o").exists()


@pytest.mark.parametrize("command", ["inspect", "compare", "quantize"])
def test_help_has_examples(command, capsys):
    assert main([command, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out


def test_awq_output(files):
    tensors = model() | {"layers.2.weight": np.random.default_rng(3).standard_normal((16, 96)).astype(np.float32)}
    save_file(tensors, files / "m.safetensors")
    flags = ["--format", "awq", "--block-size", "32"]
    done = run("quantize", files / "m.safetensors", files / "awq", *flags)
    assert done.exit_code == 0
    assert sorted(path.name for path in (files / "awq").iterdir()) == ["config.json", "model.safetensors"]
    assert "qweight" in str(load_file(files / "awq" / "model.safetensors").keys())
    with open_checkpoint(files / "awq") as checkpoint:
        assert set(checkpoint) == set(tensors)
        for name, array in tensors.items():
            if name in ("layers.0.weight", "layers.2.weight"):
                assert checkpoint.info(name).format == "awq gemm"
                expected = qcore.quantize(array, bits=4, block_size=32, scale_dtype="float16")
                assert np.array_equal(checkpoint[name].dequantize(), expected.dequantize())
            else:  # of other shapes, or kept by the rule
                assert np.array_equal(checkpoint[name], array)
    assert run("quantize", files / "m.safetensors", files / "awq", *flags).exit_code == 0  # replaced
    (files / "awq" / "config.json").write_text("{}")
    arguments = ["quantize", str(files / "m.safetensors"), str(files / "awq"), *flags]
    assert main(arguments) == 2


@pytest.mark.parametrize("bits", [4, 8])
def test_gguf_output(files, monkeypatch, bits):
    monkeypatch.setattr(chunks, "_PIECE_ITEMS", 130)
    flags = ["--bits", str(bits)]
    assert run("quantize", files / "m.safetensors", files / "m.gguf", *flags).exit_code == 0
    with open_checkpoint(files / "m.gguf") as checkpoint:
        assert set(checkpoint) == set(model())
        for name, array in model().items():
            if name == "layers.0.weight":
                assert checkpoint.info(name).format == f"gguf Q{bits}_0"
                expected = qcore.quantize(array, bits=bits, block_size=32, scale_dtype="float16")
                assert np.array_equal(checkpoint[name].dequantize(), expected.dequantize())
            else:  # of other shapes, or kept by the rule
                assert np.array_equal(checkpoint[name], array)
    save_file({"flags": np.zeros(3, bool)}, files / "m.safetensors")
    assert main(["quantize", str(files / "m.safetensors"), str(files / "m.gguf"), *flags]) == 2
