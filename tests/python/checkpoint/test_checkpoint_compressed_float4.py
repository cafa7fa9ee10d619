"""Folders of compressed-tensors with 4-bit floats through open_checkpoint."""

import json

import numpy as np
import pytest
from checkpoint_files import raw_safetensors

import qcore
from qcore.formats import (
    TensorInfo,
    from_compressed_tensors_mxfp4,
    from_compressed_tensors_nvfp4,
    open_checkpoint,
)

N, K = 6, 64
WEIGHTS = {
    "mxfp4": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True},
    "nvfp4": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True},
}


def layer(kind):
    """Return the parts of a layer, each with safetensors' name of its dtype."""
    rng = np.random.default_rng(0)
    parts = {"weight_packed": ("U8", rng.integers(0, 256, (N, K // 2)).astype(np.uint8))}
    if kind == "mxfp4":
        return parts | {"weight_scale": ("U8", rng.integers(100, 120, (N, K // 32)).astype(np.uint8))}
    parts["weight_scale"] = ("F8_E4M3", rng.integers(0, 0x7F, (N, K // 16)).astype(np.uint8))
    parts["weight_global_scale"] = ("F32", np.array([768], np.float32))
    return parts | {"input_global_scale": ("F32", np.array([2], np.float32))}


def folder(path, kind, parts, **changes):
    header, data = {}, b""
    for part, (dtype, array) in parts.items():
        ends = [len(data), len(data) + array.nbytes]
        header[f"fc.{part}"] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": ends}
        data += array.tobytes()
    raw_safetensors(path / "model.safetensors", header, data)
    group = {"targets": ["Linear"], "weights": WEIGHTS[kind] | changes}
    if kind == "nvfp4":
        group["input_activations"] = {"num_bits": 4, "type": "float", "dynamic": "local"}
    values = {"quant_method": "compressed-tensors", "format": f"{kind}-pack-quantized", "config_groups": {"0": group}}
    (path / "config.json").write_text(json.dumps({"quantization_config": values}))
    return path


def test_mxfp4(tmp_path):
    parts = layer("mxfp4")
    checkpoint = open_checkpoint(folder(tmp_path, "mxfp4", parts))
    nbytes = N * K // 2 + N * K // 32
    expected = TensorInfo(
        "fc.weight", "compressed-tensors mxfp4-pack-quantized", (N, K), 4, 32, "symmetric", nbytes, "float"
    )
    assert checkpoint.info("fc.weight") == expected
    assert checkpoint["fc.weight"] == from_compressed_tensors_mxfp4(*(array for _, array in parts.values()))


def test_nvfp4(tmp_path):
    parts = layer("nvfp4")
    checkpoint = open_checkpoint(folder(tmp_path, "nvfp4", parts))
    assert set(checkpoint) == {"fc.weight"}
    assert checkpoint.info("fc.weight").nbytes == N * K // 2 + N * K // 16 + 4
    arrays = [parts[part][1] for part in ("weight_packed", "weight_scale", "weight_global_scale")]
    assert checkpoint["fc.weight"] == from_compressed_tensors_nvfp4(*arrays)
    assert checkpoint.entry("fc.weight").activations is None


@pytest.mark.parametrize(
    ("part", "given", "message"),
    [
        ("weight_scale", None, "has no tensor fc.weight_scale, expected one"),
        ("weight_global_scale", None, "has no tensor fc.weight_global_scale, expected one"),
        ("weight_packed", ("I8", np.zeros((N, K // 2), np.int8)), "its weight is I8 [6, 32], expected U8 [N, K / 2]"),
        ("weight_packed", ("U8", np.zeros((N, 7), np.uint8)), "its weight is U8 [6, 7], expected U8 [N, K / 2]"),
        ("weight_scale", ("U8", np.zeros((N, 4), np.uint8)), "weight_scale is U8 [6, 4], expected F8_E4M3 [6, 4]"),
        ("weight_scale", ("F8_E4M3", np.zeros((N, 2), np.uint8)), "F8_E4M3 [6, 2], expected F8_E4M3 [6, 4]"),
        ("weight_global_scale", ("F32", np.zeros(2, np.float32)), "weight_global_scale is F32 [2], expected F32 [1]"),
    ],
)
def test_parts_that_do_not_fit(tmp_path, part, given, message):
    parts = layer("nvfp4")
    parts.pop(part)
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(folder(tmp_path, "nvfp4", parts if given is None else parts | {part: given}))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"num_bits": 8},
        {"num_bits": 6},
        {"group_size": 32},
        {"strategy": "group"},
        {"symmetric": False},
        {"strategy": [1]},
    ],
)
def test_config_that_does_not_fit(tmp_path, change):
    with pytest.raises(qcore.QcoreValueError, match=r"weights are floats with num_bits .*, expected 4 symmetric bits"):
        open_checkpoint(folder(tmp_path, "nvfp4", layer("nvfp4"), **change))


MXFP8 = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}


def mxfp8(path, codes=("F8_E4M3", (N, K)), scale=("U8", (N, K // 32))):
    parts = {"weight": codes, "weight_scale": scale}
    return folder(
        path, "mxfp4", {part: (kind, np.full(shape, 120, np.uint8)) for part, (kind, shape) in parts.items()}, **MXFP8
    )


@pytest.mark.parametrize("kind", ["U8", "F8_E8M0"])
def test_mxfp8_is_listed_and_an_error_when_read(tmp_path, kind):
    checkpoint = open_checkpoint(mxfp8(tmp_path, scale=(kind, (N, K // 32))))
    nbytes = N * K + N * K // 32
    expected = TensorInfo(
        "fc.weight", "compressed-tensors mxfp8-quantized", (N, K), 8, 32, "symmetric", nbytes, "float"
    )
    assert checkpoint.info("fc.weight") == expected
    with pytest.raises(qcore.QcoreValueError, match=r"model\.safetensors: tensor 'fc\.weight' is mxfp8, codes of e4m3"):
        checkpoint["fc.weight"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"codes": ("U8", (N, K))}, "its weight is U8 [6, 64], expected F8_E4M3 [N, K] with K a multiple of 32"),
        ({"codes": ("F8_E4M3", (N, 40))}, "its weight is F8_E4M3 [6, 40], expected F8_E4M3 [N, K]"),
        ({"scale": ("U8", (N, 4))}, "weight_scale is U8 [6, 4], expected U8 or F8_E8M0 [6, 2]"),
        ({"scale": ("F8_E4M3", (N, 2))}, "weight_scale is F8_E4M3 [6, 2], expected U8 or F8_E8M0 [6, 2]"),
    ],
)
def test_mxfp8_that_does_not_fit(tmp_path, given, message):
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(mxfp8(tmp_path, **given))
    assert message in str(caught.value)


def test_arrays_of_e8m0(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    octets = np.array([0, 127, 130, 254], np.uint8)
    raw_safetensors(
        tmp_path / "a.safetensors", {"x": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}, octets.tobytes()
    )
    with open_checkpoint(tmp_path / "a.safetensors") as checkpoint:
        assert (checkpoint.info("x").format, checkpoint.info("x").bits) == ("float8_e8m0fnu", 8)
        assert np.array_equal(checkpoint["x"].view(np.uint8), octets)
        qcore.save(tmp_path / "b.safetensors", {"x": checkpoint["x"]})
    with open_checkpoint(tmp_path / "b.safetensors") as checkpoint:
        assert checkpoint["x"].dtype == ml_dtypes.float8_e8m0fnu
        assert np.array_equal(checkpoint["x"].view(np.uint8), octets)


def test_scales_that_are_nan(tmp_path):
    parts = layer("mxfp4")
    parts["weight_scale"][1][2, 1] = 255
    with pytest.raises(
        qcore.QcoreValueError, match=r"tensor 'fc.weight': .* scales has 255, which is NaN in e8m0, in row"
    ):
        open_checkpoint(folder(tmp_path, "mxfp4", parts))["fc.weight"]
