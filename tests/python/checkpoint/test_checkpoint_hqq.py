"""Layers of HQQ through open_checkpoint: what is listed, what is read, and what is refused."""

import json

import numpy as np
import pytest
from packed_layers import hqq
from safetensors.numpy import save_file

import qcore
from qcore.formats import TensorInfo, open_checkpoint

N, K = 12, 128
MATRIX = np.random.default_rng(0).standard_normal((N, K), dtype=np.float32)


def folder(path, parts, config=True):
    tensors = {f"fc.{part}": np.ascontiguousarray(array).reshape(array.shape) for part, array in parts.items()}
    save_file(tensors | {"fc.bias": np.ones(N, np.float32)}, path / "model.safetensors")
    values = {"quantization_config": {"quant_method": "hqq"}} if config else {}
    (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("round_zero", [False, True])
@pytest.mark.parametrize("config", [False, True])
def test_values(tmp_path, bits, dtype, round_zero, config):
    parts, values = hqq.layer(MATRIX, bits, dtype=dtype, round_zero=round_zero)
    with open_checkpoint(folder(tmp_path, parts, config)) as checkpoint:
        assert set(checkpoint) == {"fc.weight", "fc.bias"}
        nbytes = sum(parts[part].nbytes for part in ("W_q", "scale", "zero"))
        assert checkpoint.info("fc.weight") == TensorInfo(
            "fc.weight", "hqq", (N, K), bits, 32, "asymmetric", nbytes, "float"
        )
        weight = checkpoint["fc.weight"]
    assert weight.bits == bits
    assert np.array_equal(weight.dequantize(), values)


def test_float32_zeros_are_within_float32s_rounding_of_the_formula(tmp_path):
    parts, values = hqq.layer(MATRIX, 8, dtype=np.float32)
    codes = parts["W_q"].astype(np.float64)
    formula = ((codes - parts["zero"]) * parts["scale"].astype(np.float64)).reshape(N, K)
    assert 0 < np.abs(values - formula).max() <= 2.0**-23 * 255 * parts["scale"].max()


def integer(value, dtype=np.int32):
    return np.array(value, dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"W_q": None}, "has no tensor fc.W_q, expected one"),
        ({"scale": None}, "has no tensor fc.scale, expected one"),
        ({"zero": None}, "has no tensor fc.zero, expected one"),
        ({"packing": None}, "has no tensor fc.packing, expected one"),
        ({"shape": None}, "has no tensor fc.shape, expected one"),
        ({"nbits": integer(1), "packing": hqq.text("1bit_u8")}, "nbits is 1, expected 2, 3, 4 or 8"),
        ({"nbits": np.array(1.58, np.float32)}, "nbits is F32 [], expected an integer"),
        ({"nbits": integer(2)}, "packing is '4bit_u8', expected '2bit_u8' for 2 bits"),
        ({"packing": hqq.text("4bit_32")}, "packing is '4bit_32', expected '4bit_u8' for 4 bits"),
        ({"packing": np.zeros(1000, np.uint8)}, "packing is U8 [1000], expected the text in U8"),
        ({"packing": integer([4])}, "packing is I32 [1], expected the text in U8"),
        ({"axis": integer(0)}, "axis is 0, expected 1"),
        ({"view_as_float": integer(1, np.uint8)}, "view_as_float is 1, expected 0"),
        ({"quant_zero": integer(1, np.uint8)}, "quant_zero is 1, expected 0"),
        ({"quant_scale": integer([1, 0], np.uint8)}, "quant_scale is U8 [2], expected an integer"),
        ({"shape": integer([N, K, 1])}, "shape is I32 [3], expected 2 integers"),
        ({"shape": integer([N, -K])}, "shape is [12, -128], expected N and K"),
        ({"shape": integer([2**62, 2**62], np.int64)}, "W_q is U8 [24, 32], expected U8 ["),
        ({"shape": integer([N, 2 * K])}, "W_q is U8 [24, 32], expected U8 [48, 32] for 4 bits"),
        ({"group_size": integer(48)}, "group_size is 48, expected a divisor of K = 128"),
        ({"group_size": integer(0)}, "group_size is 0, expected a divisor of K = 128"),
        ({"group_size": integer(64)}, "W_q is U8 [24, 32], expected U8 [12, 64] for 4 bits"),
        ({"W_q": np.zeros((24, 32), np.float32)}, "W_q is F32 [24, 32], expected U8 [24, 32] for 4 bits"),
        ({"scale": np.ones((47, 1), np.float16)}, "scale is F16 [47, 1], expected floats [48, 1]"),
        ({"zero": np.ones((48, 1), np.int32)}, "zero is I32 [48, 1], expected floats [48, 1]"),
    ],
)
def test_hostile_layers(tmp_path, changes, message):
    parts = hqq.layer(MATRIX, 4)[0] | changes
    path = folder(tmp_path, {part: array for part, array in parts.items() if array is not None})
    with pytest.raises(qcore.QcoreValueError) as error:
        open_checkpoint(path)
    assert str(error.value).startswith(f"open_checkpoint: {path / 'model.safetensors'}: layer 'fc' (hqq)")
    assert message in str(error.value)


def test_a_float_weight_of_the_same_name(tmp_path):
    parts = hqq.layer(MATRIX, 4)[0] | {"weight": MATRIX}
    with pytest.raises(qcore.QcoreValueError, match=r"has both 'fc\.weight' and a packed layer of that name"):
        open_checkpoint(folder(tmp_path, parts))


def test_what_cannot_be_read_is_listed_and_an_error_when_read(tmp_path):
    parts, _ = hqq.layer(MATRIX, 8)
    parts["zero"][7] = np.nan
    with open_checkpoint(folder(tmp_path, parts)) as checkpoint:
        assert checkpoint.info("fc.weight").shape == (N, K)
        with pytest.raises(qcore.QcoreValueError) as error:
            checkpoint["fc.weight"]
    assert str(error.value).startswith(f"{tmp_path / 'model.safetensors'}: tensor 'fc.weight': ")
    assert "zero has nan" in str(error.value)
