"""Calls that open_checkpoint, save and `qcore quantize` refuse beyond hostile headers, each with the whole reason."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from checkpoint_files import AWQ, GGUF_Q8_0, GPTQ, gguf, model, packed_folder, raw_safetensors, sharded
from safetensors.numpy import load_file, save_file

import qcore
from qcore.cli import main
from qcore.formats import open_checkpoint
from qcore.formats.checkpoint.files import folder, safetensors
from qcore.formats.checkpoint.partial_file import PartialFile
from qcore.formats.checkpoint.quantizing import Options, plan


def changed(path, config, change):
    """Write a folder of packed layers with arrays of another kind; None leaves one out."""
    made = packed_folder(path, config)
    tensors = {name: array for name, array in (load_file(made / "model.safetensors") | change).items()}
    save_file({n: a for n, a in tensors.items() if a is not None}, made / "model.safetensors")
    return made


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        (AWQ, {"layer.weight": np.ones(2)}, "has both 'layer.weight' and a packed layer of that name, expected one"),
        (GPTQ, {"layer.qweight": np.zeros((8, 12), np.int32)}, "has N = 12, expected a multiple of 8"),
        (GPTQ, {"layer.g_idx": np.zeros(63, np.int32)}, "g_idx is I32 [63], expected I32 [64]"),
        (GPTQ, {"layer.g_idx": np.zeros(64, np.int64)}, "g_idx is I64 [64], expected I32 [64]"),
        (GPTQ, {"layer.g_idx": None}, "has no tensor layer.g_idx, expected one"),
        (AWQ, {"layer.qzeros": np.zeros(4, np.int32)}, "qzeros is I32 [4], expected I32 of two axes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_packed_layers(tmp_path, config, change, words):
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(changed(tmp_path, config, change))
    assert str(caught.value).endswith(words)
    assert f"open_checkpoint: {tmp_path / 'model.safetensors'}" in str(caught.value)


@pytest.mark.parametrize("config", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_a_codec_that_refuses_names_the_file_and_the_tensor(tmp_path, config):
    path = changed(tmp_path, config, {"layer.scales": np.full((2, 16), np.inf, np.float16)})
    message = r"model\.safetensors: tensor 'layer.weight': from_\w+: scales has inf at index \[0, 0\], expected finite"
    with pytest.raises(qcore.QcoreValueError, match=message):
        open_checkpoint(path)["layer.weight"]


def test_config_of_an_absurd_size(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "MOST_HEADER_BYTES", 20)
    with pytest.raises(qcore.QcoreValueError, match=r"config\.json has \d+ bytes, expected JSON of 20 at most"):
        open_checkpoint(packed_folder(tmp_path, AWQ))


def test_a_header_that_no_reader_would_take(tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors, "MOST_HEADER_BYTES", 20)
    with pytest.raises(qcore.QcoreValueError, match=r"a header of \d+ bytes is needed, expected at most 20"):
        qcore.save(tmp_path / "o.safetensors", {"x": np.ones(3)})
    assert list(tmp_path.iterdir()) == []


def test_gguf_blocks_of_three_axes(tmp_path):
    path = gguf(tmp_path / "m.gguf", {"x": (GGUF_Q8_0, (2, 3, 32), bytes(6 * 34))})
    with pytest.raises(qcore.QcoreValueError, match=r"'x' is Q8_0 of shape \[2, 3, 32\], expected \[N, K\]"):
        open_checkpoint(path)["x"]


def test_own_layout_with_an_array_of_a_weights_name(tmp_path):
    path = tmp_path / "w.safetensors"
    qcore.save(path, {"w": qcore.quantize(np.eye(4, 8, dtype=np.float32), bits=8)})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    end = len(content) - 8 - length
    header["w"] = {"dtype": "U8", "shape": [1], "data_offsets": [end, end + 1]}
    raw_safetensors(path, header, content[8 + length :] + b"\0")
    with pytest.raises(qcore.QcoreValueError, match="has both a quantized weight and an array 'w', expected one"):
        open_checkpoint(path)


def test_own_layout_in_shards(tmp_path):
    index = sharded(tmp_path, {"a": np.ones(3), "b": np.zeros(2)})
    qcore.save(tmp_path / "model-1.safetensors", {"a": np.ones(3)})
    with pytest.raises(qcore.QcoreValueError, match="is an index of files in qcore's layout, expected one file"):
        open_checkpoint(index)


def test_eight_bit_floats_need_ml_dtypes(tmp_path, monkeypatch):
    header = {"x": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
    path = raw_safetensors(tmp_path / "m.safetensors", header, bytes(2))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    checkpoint = open_checkpoint(path)
    assert repr(checkpoint) == f"Checkpoint({str(path)!r}, 1 tensors)"
    assert checkpoint.info("x").format == "float8_e4m3fn"
    with pytest.raises(qcore.QcoreTypeError, match="F8_E4M3 arrays of NumPy need the package ml_dtypes: pip install"):
        checkpoint["x"]


GGUF = ["--format", "gguf", "--block-size", "32", "--scale-dtype", "float16"]
PACKED = ["--format", "awq", "--block-size", "32", "--scale-dtype", "float16"]


@pytest.mark.parametrize(
    ("output", "flags", "words"),
    [
        ("folder", [], "quantize: folder is a folder, expected the name of a file"),
        ("folder", GGUF, "quantize: folder is a folder, expected the name of a file"),
        ("file", PACKED, "quantize: file is a file, expected a folder for --format awq"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_outputs_of_the_wrong_kind(tmp_path, monkeypatch, capsys, output, flags, words):
    monkeypatch.chdir(tmp_path)
    save_file(model(), "m.safetensors")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    assert main(["quantize", "m.safetensors", output, *flags]) == 2
    assert words in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("m.safetensors", b"1234567", "has 7 bytes, expected a header of 8 or more"),
        ("m.safetensors.index.json", b'{"weight_map": 3}', "has no object 'weight_map', expected one"),
    ],
)
def test_files_that_are_no_checkpoints(tmp_path, path, content, words):
    (tmp_path / path).write_bytes(content)
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(tmp_path)
    assert f"{tmp_path / path} {words}" in str(caught.value)


def test_gguf_output_of_what_gguf_cannot_hold(tmp_path, capsys):
    long = "n" * 64
    for tensors, words in [
        ({"flags": np.zeros(3, bool)}, "tensor 'flags' is BOOL [3], expected for GGUF one of F32"),
        ({"x": np.zeros((1, 1, 1, 1, 1))}, "tensor 'x' is F64 [1, 1, 1, 1, 1], expected"),
        ({long: np.zeros(3)}, f"tensor '{long}' has a name of 64 bytes, expected at most 63 for GGUF"),
        ({"fc": np.ones((2, 32), np.float32), long: np.ones((2, 32), np.float32)}, f"'{long}' has a name of 64 bytes"),
    ]:
        save_file(tensors, tmp_path / "m.safetensors")
        assert main(["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o.gguf"), *GGUF]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert "at most 4 axes" in error or "a name of 64 bytes" in error
        assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_awq_output_in_a_folder_of_something_else(tmp_path, capsys):
    save_file(model(), tmp_path / "m.safetensors")
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "config.json").write_text("{}")
    assert main(["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o"), *PACKED]) == 2
    assert "config.json exists and says something else, expected an empty folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["config.json"]


def test_an_output_that_another_process_writes(tmp_path):
    with (
        PartialFile(tmp_path / "o", b"", 1, "run", {}),
        pytest.raises(qcore.QcoreValueError, match=r"^quantize: .*o\.partial is being written by another process"),
    ):
        PartialFile(tmp_path / "o", b"", 1, "run", {})


@pytest.mark.parametrize("renamed", [True, False], ids=["renamed", "removed"])
def test_a_file_that_another_process_finishes_before_the_lock_is_left_alone(tmp_path, monkeypatch, renamed):
    output, partial = tmp_path / "o", tmp_path / "o.partial"
    partial.write_bytes(b"finished")
    lock, locked = PartialFile._lock, []

    def finish_then_lock(self, handle):
        if not locked:  # what the other process does between our open() and our flock()
            partial.rename(output) if renamed else partial.unlink()
        locked.append(handle)
        lock(self, handle)

    monkeypatch.setattr(PartialFile, "_lock", finish_then_lock)
    with PartialFile(output, b"new", 3, "run", {}):
        assert len(locked) == 2
        assert partial.read_bytes() == b"new"
        assert (output.read_bytes() == b"finished") if renamed else not output.exists()


def test_an_error_removes_no_file_that_another_process_has_begun(tmp_path):
    with pytest.raises(qcore.QcoreValueError, match="refused"), PartialFile(tmp_path / "o", b"1", 1, "a", {}) as first:
        first.finish()
        second = PartialFile(tmp_path / "o", b"2", 1, "b", {})
        raise qcore.QcoreValueError("refused")
    with second:
        assert second.partial.read_bytes() == b"2"
        assert second.journal.exists()
        second.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o"]
    assert (tmp_path / "o").read_bytes() == b"2"


def test_a_finished_file_has_no_journal_that_would_be_that_of_another_process(tmp_path, monkeypatch):
    replace, found = os.replace, []
    with PartialFile(tmp_path / "o", b"1", 1, "a", {}) as file:
        monkeypatch.setattr(os, "replace", lambda *names: (found.append(file.journal.exists()), replace(*names)))
        file.finish()
    assert found == [False]


def test_a_quantized_file_behind_a_link(tmp_path):
    save_file(model(), tmp_path / "m.safetensors")
    (tmp_path / "o.safetensors").symlink_to("real.safetensors")
    for _ in range(2):  # the file that the link names is absent, then there
        assert main(["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors")]) == 0
        assert (tmp_path / "o.safetensors").is_symlink()
        assert {path.name for path in tmp_path.iterdir()} == {"m.safetensors", "o.safetensors", "real.safetensors"}
        assert set(open_checkpoint(tmp_path / "real.safetensors")) == set(model())
        (tmp_path / "real.safetensors").chmod(0o640)
    assert (tmp_path / "real.safetensors").stat().st_mode & 0o777 == 0o640


def test_an_output_that_is_a_pipe(tmp_path, capsys):
    save_file(model(), tmp_path / "m.safetensors")
    os.mkfifo(tmp_path / "o")
    assert main(["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o")]) == 2
    assert "o is a device, a pipe or a socket, expected the name of a file" in capsys.readouterr().err
    assert (tmp_path / "o").is_fifo()
    with pytest.raises(OSError, match="it is a device, a pipe or a socket"):
        PartialFile(tmp_path / "o", b"", 1, "run", {})


def test_a_full_disk_names_the_output(tmp_path):
    save_file(model(), tmp_path / "m.safetensors")
    code = (
        "import resource, sys\nfrom qcore.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\nsys.exit(main(sys.argv[1:]))"
    )
    arguments = ["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"qcore: error: {tmp_path / 'o.safetensors'}: File too large\n"


def test_onnx_output_needs_the_package(tmp_path, monkeypatch, capsys):
    save_file(model(), tmp_path / "m.safetensors")
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o"), "--format", "onnx"]) == 2
    assert "need the package onnx: pip install" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_layers_that_a_layout_cannot_hold_say_why(tmp_path):
    tensors = {"empty": np.ones((0, 4)), "n": np.ones((9, 64)), "k": np.ones((8, 40)), "conv": np.ones((8, 32, 1, 1))}
    save_file({f"{n}.weight": a.astype(np.float32) for n, a in tensors.items()}, tmp_path / "m.safetensors")
    options = Options(format="awq", block_size=32, scale_dtype="float16")
    reasons = {job.name: job.choice.reason for job in plan(open_checkpoint(tmp_path), options)}
    assert reasons == {
        "empty.weight": "empty",
        "n.weight": "awq: N = 9 is no multiple of 8",
        "k.weight": "awq: K = 40 is no multiple of 32",
        "conv.weight": "awq: no NAME.weight of two axes",
    }


def test_a_partial_file_of_another_size_is_no_work_done(tmp_path):
    places = {"x": {"x": (0, 4)}}
    for size in (4, 8):
        with PartialFile(tmp_path / "o", b"", size, "run", places) as file:
            assert file.finished == set()
            writer = file.tensor("x")
            writer.write("x", np.zeros(4, np.uint8))
            file.finish_tensor("x", writer)
    with PartialFile(tmp_path / "o", b"", 8, "run", places) as file:
        assert file.finished == {"x"}


def test_parts_are_written_whole_and_no_further(tmp_path):
    with PartialFile(tmp_path / "o", b"", 4, "run", {"x": {"x": (0, 4)}}) as file:
        writer = file.tensor("x")
        writer.write("x", np.zeros(3, np.uint8))
        with pytest.raises(AssertionError, match=r"x has 4 bytes, 3 of them written$"):
            file.finish_tensor("x", writer)
        with pytest.raises(AssertionError, match="x has 4 bytes, 3 of them written: got 2"):
            writer.write("x", np.zeros(2, np.uint8))
