"""Folders of MLX through open_checkpoint, made by hand; MLX itself is in interop/."""

import json
import sys

import numpy as np
import pytest
from checkpoint_files import raw_safetensors
from safetensors.numpy import save_file

import qcore
from qcore.formats import TensorInfo, from_mlx, open_checkpoint

QUANTIZATION = {"group_size": 32, "bits": 4}


def layer(n=6, k=64, bits=4, g=32, dtype=np.float16, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "weight": rng.integers(0, 2**32, (n, k * bits // 32), dtype=np.uint64).astype(np.uint32),
        "scales": rng.uniform(0.01, 0.02, (n, k // g)).astype(dtype),
        "biases": rng.uniform(-0.2, 0.2, (n, k // g)).astype(dtype),
    }


def folder(path, layers, quantization=QUANTIZATION, extra=None):
    """Write a folder; ``quantization`` None: no such field; "absent": no config.json."""
    path.mkdir(exist_ok=True)
    tensors = {f"{name}.{part}": array for name, parts in layers.items() for part, array in parts.items()}
    save_file(tensors | (extra or {"norm.weight": np.ones(4, np.float32)}), path / "model.safetensors")
    if quantization != "absent":
        config = {"model_type": "llama"} | ({} if quantization is None else {"quantization": quantization})
        (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_layer_is_the_formula(tmp_path):
    parts = layer()
    checkpoint = open_checkpoint(folder(tmp_path, {"l.fc": parts}))
    assert set(checkpoint) == {"l.fc.weight", "norm.weight"}
    nbytes = sum(array.nbytes for array in parts.values())
    assert checkpoint.info("l.fc.weight") == TensorInfo(
        "l.fc.weight", "mlx affine", (6, 64), 4, 32, "asymmetric", nbytes, "float"
    )
    codes = np.stack([parts["weight"] >> np.uint32(4 * j) & 15 for j in range(8)], -1).reshape(6, 64)
    scales, biases = (np.repeat(parts[each].astype(np.float64), 32, axis=1) for each in ("scales", "biases"))
    assert np.array_equal(checkpoint["l.fc.weight"].dequantize(), (codes * scales + biases).astype(np.float32))
    assert np.array_equal(checkpoint["norm.weight"], np.ones(4, np.float32))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_every_width(tmp_path, bits):
    parts = layer(bits=bits)
    checkpoint = open_checkpoint(folder(tmp_path, {"fc": parts}, {"group_size": 32, "bits": bits, "mode": "affine"}))
    assert checkpoint.info("fc.weight").bits == bits
    assert checkpoint["fc.weight"] == from_mlx(**parts, bits=bits, block_size=32)


@pytest.mark.parametrize(("mode", "g"), [("mxfp4", 32), ("nvfp4", 16)])
def test_modes_of_float4(tmp_path, mode, g):
    scales = np.random.default_rng(1).integers(100, 120, (6, 64 // g)).astype(np.uint8)
    parts, affine = {"weight": layer()["weight"], "scales": scales}, layer(seed=1)
    quantization = {"group_size": g, "bits": 4, "mode": mode, "b": {"group_size": 32, "bits": 4}}
    checkpoint = open_checkpoint(folder(tmp_path, {"a": parts, "b": affine}, quantization))
    nbytes = sum(array.nbytes for array in parts.values())
    assert checkpoint.info("a.weight") == TensorInfo(
        "a.weight", f"mlx {mode}", (6, 64), 4, g, "symmetric", nbytes, "float"
    )
    assert checkpoint["a.weight"] == from_mlx(**parts, block_size=g, mode=mode)
    assert checkpoint["b.weight"] == from_mlx(**affine, bits=4, block_size=32)
    wrong = {"weight": parts["weight"], "scales": scales.astype(np.float16)}
    with pytest.raises(qcore.QcoreValueError, match=rf"layer 'a' \(mlx {mode}, .*: scales is F16 .*, expected U8"):
        open_checkpoint(folder(tmp_path, {"a": wrong}, quantization))


def test_mxfp8_is_listed_and_an_error_when_read(tmp_path):
    parts = {"weight": layer(bits=8)["weight"], "scales": np.full((6, 2), 120, np.uint8)}
    quantization = {"group_size": 32, "bits": 8, "mode": "mxfp8", "b": {"group_size": 32, "bits": 4}}
    checkpoint = open_checkpoint(folder(tmp_path, {"a": parts, "b": layer(seed=1)}, quantization))
    nbytes = 6 * 64 + 6 * 2
    assert checkpoint.info("a.weight") == TensorInfo(
        "a.weight", "mlx mxfp8", (6, 64), 8, 32, "symmetric", nbytes, "float"
    )
    with pytest.raises(qcore.QcoreValueError, match=r"model\.safetensors: tensor 'a\.weight' is mxfp8, codes of e4m3"):
        checkpoint["a.weight"]
    assert checkpoint["b.weight"].shape == (6, 64)


def test_layers_with_widths_of_their_own(tmp_path):
    own, usual, named = layer(bits=8, g=64), layer(seed=1), layer(seed=2)
    quantization = QUANTIZATION | {"a": {"group_size": 64, "bits": 8}, "c": True, "plain": False, "elsewhere": False}
    extra = {"plain.weight": np.ones((2, 3), np.float32)}
    checkpoint = open_checkpoint(folder(tmp_path, {"a": own, "b": usual, "c": named}, quantization, extra))
    assert checkpoint["a.weight"] == from_mlx(**own, bits=8, block_size=64)
    assert checkpoint["b.weight"] == from_mlx(**usual, bits=4, block_size=32)
    assert checkpoint["c.weight"] == from_mlx(**named, bits=4, block_size=32)
    assert np.array_equal(checkpoint["plain.weight"], extra["plain.weight"])


def test_bfloat16_parameters_need_no_ml_dtypes(tmp_path, monkeypatch):
    import ml_dtypes

    parts = layer(dtype=ml_dtypes.bfloat16)
    header, data = {}, b""
    for (part, array), dtype in zip(parts.items(), ("U32", "BF16", "BF16"), strict=True):
        ends = [len(data), len(data) + array.nbytes]
        header[f"fc.{part}"] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": ends}
        data += array.tobytes()
    raw_safetensors(tmp_path / "model.safetensors", header, data)
    (tmp_path / "config.json").write_text(json.dumps({"quantization": QUANTIZATION}))
    expected = from_mlx(**parts, bits=4, block_size=32)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert open_checkpoint(tmp_path)["fc.weight"] == expected


def test_saved_in_our_layout(tmp_path):
    with open_checkpoint(folder(tmp_path / "mlx", {"fc": layer()})) as checkpoint:
        qcore.save(tmp_path / "ours.safetensors", checkpoint)
        assert qcore.load(tmp_path / "ours.safetensors")["fc.weight"] == checkpoint["fc.weight"]


def test_words_and_scales_of_others_stay_arrays(tmp_path):
    parts = {part: array for part, array in layer().items() if part != "biases"}
    assert set(open_checkpoint(folder(tmp_path, {"fc": parts}, None))) == {"fc.weight", "fc.scales", "norm.weight"}


def test_experts_are_listed_and_an_error_when_read(tmp_path):
    stacked = {part: np.stack([array] * 3) for part, array in layer().items()}
    checkpoint = open_checkpoint(folder(tmp_path, {"experts": stacked}))
    assert checkpoint.info("experts.weight").shape == (3, 6, 64)
    with pytest.raises(qcore.QcoreValueError, match=r"'experts.weight' is .* \[3, 6, 64\], expected \[N, K\]"):
        checkpoint["experts.weight"]


def test_a_codec_that_refuses_names_the_tensor(tmp_path):
    parts = layer()
    parts["scales"][2, 1] = np.nan
    with pytest.raises(qcore.QcoreValueError, match=r"tensor 'fc.weight': from_mlx: scales has nan at index \[2, 1\]"):
        open_checkpoint(folder(tmp_path, {"fc": parts}))["fc.weight"]


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ("absent", "no config.json beside it, expected one"),
        (None, "no object quantization in its config.json, expected one"),
        ([4], "no object quantization in its config.json"),
        ({"bits": 4}, "has no 'group_size'"),
        ({"group_size": 32}, "has no 'bits'"),
        (QUANTIZATION | {"fc": {"bits": 4}}, "quantization of its config.json: fc has no 'group_size'"),
        (QUANTIZATION | {"fc": {"group_size": 32}}, "fc has no 'bits'"),
        (QUANTIZATION | {"fc": 4}, "fc is 4, expected an object or false"),
        (QUANTIZATION | {"fc": False}, "fc is False, expected none of fc.scales"),
        (QUANTIZATION | {"mode": "mxfp6"}, "mode is 'mxfp6', expected 'affine', 'mxfp4', 'nvfp4' or 'mxfp8'"),
        (QUANTIZATION | {"mode": "mxfp8"}, "bits is 4 and group_size 32, expected 8 and 32 with mode 'mxfp8'"),
        (QUANTIZATION | {"mode": "mxfp4"}, "has fc.biases, expected none with mode 'mxfp4'"),
        (QUANTIZATION | {"fc": QUANTIZATION | {"mode": "nvfp4"}}, "fc: bits is 4 and group_size 32, expected 4 and 16"),
        (QUANTIZATION | {"bits": 7}, "bits is 7, expected one of 2, 3, 4, 5, 6, 8"),
        (QUANTIZATION | {"bits": "4"}, "bits is '4', expected"),
        (QUANTIZATION | {"bits": [4]}, "bits is [4], expected"),
        (QUANTIZATION | {"group_size": 0}, "group_size is 0, expected a positive integer"),
        (QUANTIZATION | {"group_size": True}, "group_size is True, expected a positive integer"),
        (QUANTIZATION | {"group_size": 48}, "weight has shape [6, 8], expected [N, K * 4 / 32]"),
        (QUANTIZATION | {"bits": 3}, "weight has shape [6, 8], expected [N, K * 3 / 32]"),
        (QUANTIZATION | {"bits": 8}, "scales is F16 [6, 2], expected F32 or F16 or BF16 [6, 1]"),
    ],
    ids=str,
)
def test_config_that_does_not_fit(tmp_path, quantization, words):
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(folder(tmp_path, {"fc": layer()}, quantization))
    assert words in str(caught.value)
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"biases": None}, "no tensor fc.biases"),
        ({"biases": np.zeros((6, 3), np.float16)}, "biases is F16 [6, 3], expected F32 or F16 or BF16 [6, 2]"),
        ({"scales": np.zeros((6, 2), np.int8)}, "scales is I8 [6, 2], expected F32"),
        ({"weight": np.zeros(8, np.uint32)}, "weight has shape [8], expected"),
        ({"weight": np.zeros((), np.uint32)}, "weight has shape [], expected"),
        ({"weight": np.zeros((6, 0), np.uint32)}, "weight has shape [6, 0], expected"),
    ],
    ids=str,
)
def test_parts_that_do_not_fit(tmp_path, change, words):
    parts = {part: array for part, array in (layer() | change).items() if array is not None}
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(folder(tmp_path, {"fc": parts}))
    assert words in str(caught.value)
    assert "layer 'fc' (mlx, 4 bits, group_size 32)" in str(caught.value)
