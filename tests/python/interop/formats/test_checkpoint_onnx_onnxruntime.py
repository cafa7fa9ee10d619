"""`qcore quantize --format onnx`, layer by layer in ONNX Runtime."""

import json

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from checkpoint_files import model
from safetensors.numpy import save_file

import qcore
from qcore import formats
from qcore.cli import main
from qcore.formats import open_checkpoint
from qcore.formats.checkpoint import chunks
from qcore.formats.checkpoint.partial_file import PartialFile
from qcore.formats.checkpoint.quantizing import Options, quantize_checkpoint

LAYERS = ("layers.0.weight", "layers.1.weight")


@pytest.fixture
def source(tmp_path):
    tensors = model() | {"empty": np.empty((0, 4), np.float32), "scalar": np.array(2.5)}
    tensors["narrow"] = np.arange(6).astype(ml_dtypes.bfloat16)
    qcore.save(tmp_path / "m.safetensors", tensors)
    return tmp_path / "m.safetensors"


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # constants that no node uses are warned of
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def test_the_suffix_tells_the_format(source, tmp_path):
    path = tmp_path / "o.onnx"
    assert main(["quantize", str(source), str(path), "--json", str(tmp_path / "result.json")]) == 0
    onnx.checker.check_model(str(path))
    assert json.loads((tmp_path / "result.json").read_text())["format"] == "onnx"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("method", ["rtn", "mse"])
def test_onnxruntime_has_our_values(source, tmp_path, monkeypatch, bits, method):
    monkeypatch.setattr(chunks, "_PIECE_ITEMS", 130)  # a few rows at a time
    path = tmp_path / "m.onnx"
    flags = ["--format", "onnx", "--bits", str(bits), "--block-size", "16", "--method", method]
    assert main(["quantize", str(source), str(path), *flags]) == 0
    onnx.checker.check_model(str(path))
    expected = {n: qcore.quantize(model()[n], bits=bits, block_size=16, method=method) for n in LAYERS}
    assert formats.from_onnx(path) == expected
    session = session_of(path)
    none = {each.name: np.empty((0, each.shape[1]), np.float32) for each in session.get_inputs()}
    rng = np.random.default_rng(0)
    for name, weight in expected.items():
        eye = np.eye(weight.shape[1], dtype=np.float32)  # one term of each sum isn't zero: nothing is rounded
        (values,) = session.run([f"{name}.y"], none | {f"{name}.x": eye})
        assert np.array_equal(values.T, weight.dequantize())
        x = rng.standard_normal((5, weight.shape[1]), dtype=np.float32)
        (y,) = session.run([f"{name}.y"], none | {f"{name}.x": x})
        ours = qcore.linear(x, weight, compute="float")
        assert np.abs(y - ours).max() <= 1e-5 * np.abs(ours).max()


def test_all_other_tensors_are_there(source, tmp_path):
    path = tmp_path / "m.onnx"
    assert main(["quantize", str(source), str(path), "--format", "onnx"]) == 0
    found = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    with open_checkpoint(source) as checkpoint:
        assert set(found) == {n for n in checkpoint if n not in LAYERS} | {
            f"{n}.{part}" for n in LAYERS for part in ("B", "scales")
        }
        for name in checkpoint:
            if name not in LAYERS:
                assert found[name].shape == checkpoint[name].shape
                assert found[name].astype(np.float64).tobytes() == checkpoint[name].astype(np.float64).tobytes()


def test_one_layer_can_be_taken_out(source, tmp_path):
    path, one = tmp_path / "m.onnx", tmp_path / "one.onnx"
    assert main(["quantize", str(source), str(path), "--format", "onnx"]) == 0
    onnx.utils.extract_model(str(path), str(one), [f"{LAYERS[0]}.x"], [f"{LAYERS[0]}.y"])
    x = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)
    (y,) = session_of(one).run(None, {f"{LAYERS[0]}.x": x})
    ours = qcore.linear(x, qcore.quantize(model()[LAYERS[0]]), compute="float")
    assert np.abs(y - ours).max() <= 1e-5 * np.abs(ours).max()


def test_an_interrupted_run_leaves_no_model_and_goes_on(source, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    finish, path = PartialFile.finish_tensor, tmp_path / "m.onnx"

    def stop(self, tensor, writer):
        if tensor == LAYERS[1]:
            raise Killed
        finish(self, tensor, writer)

    options = Options(format="onnx")
    with monkeypatch.context() as patch, open_checkpoint(source) as checkpoint:
        patch.setattr(PartialFile, "finish_tensor", stop)
        with pytest.raises(Killed):
            quantize_checkpoint(checkpoint, path, options)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "m.onnx.data.partial",
        "m.onnx.data.partial.journal",
        "m.safetensors",
    ]
    with open_checkpoint(source) as checkpoint:
        assert quantize_checkpoint(checkpoint, path, options).resumed > 1
        assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data", "m.safetensors"]
        content = path.read_bytes(), (tmp_path / "m.onnx.data").read_bytes()
        quantize_checkpoint(checkpoint, path, options)  # replaced
        assert (path.read_bytes(), (tmp_path / "m.onnx.data").read_bytes()) == content


@pytest.mark.parametrize(
    ("tensors", "output", "words"),
    [
        ({"a": np.ones((2, 4), np.float32), "a.x": np.ones(2)}, "o.onnx", ["'a.x'", "node 'a'", "--exclude 'a'"]),
        ({"a": np.ones((2, 4), np.float32), "a.B": np.ones(2)}, "o.onnx", ["'a.B' is taken"]),
        ({"a": np.ones((2, 4), np.float32)}, "m.safetensors", ["--format is onnx, expected --format qcore or none"]),
        ({"a": np.ones((2, 4), np.float32)}, "absent/o.onnx", ["no folder", "absent"]),
        ({"a": np.ones((2, 4), np.float32)}, "folder", ["folder is a folder, expected the name of a file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused(tmp_path, monkeypatch, capsys, tensors, output, words):
    monkeypatch.chdir(tmp_path)
    save_file(tensors, tmp_path / "m.safetensors")
    (tmp_path / "folder").mkdir()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert main(["quantize", "m.safetensors", output, "--format", "onnx"]) == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_checkpoint_of_nothing_but_empty_tensors(tmp_path):
    save_file({"empty": np.empty((0, 4), np.float32)}, tmp_path / "m.safetensors")
    assert main(["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o.onnx"), "--format", "onnx"]) == 0
    (only,) = onnx.load(tmp_path / "o.onnx").graph.initializer
    assert onnx.numpy_helper.to_array(only).shape == (0, 4)
