"""Layers of bitsandbytes through open_checkpoint: what is listed, what is read, and what is refused."""

import json

import numpy as np
import pytest
from packed_layers import bitsandbytes as bnb
from safetensors.numpy import save_file

import qcore
from qcore.formats import TensorInfo, open_checkpoint

N, K = 16, 128
MATRIX = np.random.default_rng(0).standard_normal((N, K), dtype=np.float32)
STATE = bnb.STATE + "nf4"


def folder(path, parts, config=True):
    tensors = {f"fc.{part}": np.ascontiguousarray(array).reshape(array.shape) for part, array in parts.items()}
    save_file(tensors | {"fc.bias": np.ones(N, np.float32)}, path / "model.safetensors")
    values = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}} if config else {}
    (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("config", [False, True])
def test_four_bits(tmp_path, kind, nested, config):
    parts = bnb.four_bits(MATRIX, kind, 64, nested)
    with open_checkpoint(folder(tmp_path, parts, config)) as checkpoint:
        assert set(checkpoint) == {"fc.weight", "fc.bias"}
        nbytes = sum(array.nbytes for part, array in parts.items() if bnb.STATE not in part)
        expected = TensorInfo("fc.weight", f"bitsandbytes {kind}", (N, K), 4, 64, "symmetric", nbytes, "float")
        assert checkpoint.info("fc.weight") == expected
        weight = checkpoint["fc.weight"]
    ours, _, _ = bnb.decoded(parts)
    assert np.array_equal(weight.dequantize(), ours)


@pytest.mark.parametrize("config", [False, True])
def test_int8(tmp_path, config):
    parts, values = bnb.int8(MATRIX)
    with open_checkpoint(folder(tmp_path, parts, config)) as checkpoint:
        assert set(checkpoint) == {"fc.weight", "fc.bias"}
        expected = TensorInfo("fc.weight", "bitsandbytes int8", (N, K), 8, K, "symmetric", N * K + 4 * N + 1, "float")
        assert checkpoint.info("fc.weight") == expected
        assert np.array_equal(checkpoint["fc.weight"].dequantize(), values)


def changed(nested, changes):
    """Return the parts of a layer with others in their place; None takes one away."""
    parts = bnb.four_bits(MATRIX, "nf4", 64, nested) | changes
    return {part: array for part, array in parts.items() if array is not None}


def state(**changes):
    values = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [N, K]}
    return {STATE: bnb.described(values | changes)}


def float32(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("nested", "changes", "message"),
    [
        (False, {"weight": None}, "has no tensor fc.weight, expected one"),
        (False, {"weight.absmax": None}, "has no tensor fc.weight.absmax, expected one"),
        (False, {STATE: None}, "has no tensor fc.weight.quant_state.bitsandbytes__nf4 or fp4, expected one"),
        (False, {STATE: None, "weight.absmax": None}, "has no tensor fc.weight.quant_state"),
        (False, {bnb.STATE + "fp4": bnb.described({})}, "has 2 tensors fc.weight.quant_state.bitsandbytes__*"),
        (
            False,
            {STATE: None, bnb.STATE + "af4": bnb.described({})},
            "fc.weight.quant_state.bitsandbytes__af4 names 'af4', expected 'nf4' or 'fp4'",
        ),
        (False, {STATE: np.zeros(9, np.uint8)}, "bitsandbytes__nf4 holds no JSON object, expected one"),
        (False, {STATE: np.frombuffer(b"[1]", np.uint8)}, "bitsandbytes__nf4 holds no JSON object, expected one"),
        (False, {STATE: np.full(60000, ord("["), np.uint8)}, "bitsandbytes__nf4 holds no JSON object, expected one"),
        (False, {STATE: np.zeros(70000, np.uint8)}, "is U8 [70000], expected U8, at most 65536 bytes of JSON"),
        (False, {STATE: float32(4)}, "bitsandbytes__nf4 is F32 [4], expected U8, at most 65536 bytes of JSON"),
        (False, state(quant_type="fp4"), "quant_type is 'fp4', expected 'nf4'"),
        (False, state(blocksize=0), "blocksize is 0, expected a positive integer"),
        (False, state(blocksize=True), "blocksize is True, expected a positive integer"),
        (False, state(shape=[N]), "shape is [16], expected N and K"),
        (False, state(shape=[N, -K]), "shape is [16, -128], expected N and K"),
        (False, state(shape=[N, 2**70]), "weight is U8 [1024, 1], expected half of a byte for each of [16, "),
        (False, state(shape=[N, 2 * K]), "weight is U8 [1024, 1], expected half of a byte for each of [16, 256]"),
        (False, {"weight": np.zeros((N * K // 2, 1), np.int64)}, "weight is I64 [1024, 1], expected half of a byte"),
        (False, state(blocksize=32), "weight.absmax is F32 [32], expected F32 [64]"),
        (False, {"weight.absmax": np.ones(32, np.float16)}, "weight.absmax is F16 [32], expected F32 [32]"),
        (False, {"weight.quant_map": float32(15)}, "weight.quant_map is F32 [15], expected F32 [16]"),
        (False, {"weight.nested_absmax": float32(1)}, "has a tensor fc.weight.nested_absmax, expected none"),
        (
            True,
            {"weight.nested_absmax": None},
            "has no tensor fc.weight.nested_absmax, expected one: weight.absmax is U8",
        ),
        (True, {"weight.nested_quant_map": None}, "has no tensor fc.weight.nested_quant_map, expected one"),
        (True, {"weight.nested_absmax": float32(2)}, "weight.nested_absmax is F32 [2], expected F32 [1]"),
        (True, {"weight.nested_quant_map": float32(16)}, "weight.nested_quant_map is F32 [16], expected F32 [256]"),
        (True, state(), "bitsandbytes__nf4 has no 'nested_offset', expected one: weight.absmax is U8"),
        (True, state(nested_blocksize=128), "nested_blocksize is 128, expected 256"),
        (True, state(nested_offset=float("nan")), "nested_offset is nan, expected a finite float32"),
        (True, state(nested_offset=1e39), "nested_offset is 1e+39, expected a finite float32"),
        (True, state(nested_offset="1"), "nested_offset is '1', expected a finite float32"),
    ],
)
def test_hostile_layers_of_four_bits(tmp_path, nested, changes, message):
    path = folder(tmp_path, changed(nested, changes))
    with pytest.raises(qcore.QcoreValueError) as error:
        open_checkpoint(path)
    assert str(error.value).startswith(f"open_checkpoint: {path / 'model.safetensors'}: layer 'fc' (bitsandbytes)")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SCB": None}, "has no tensor fc.SCB, expected one"),
        ({"weight": None}, "has no tensor fc.weight, expected one"),
        ({"SCB": float32(N + 1)}, "SCB is F32 [17], expected F32 [16]"),
        ({"SCB": np.ones(N, np.float16)}, "SCB is F16 [16], expected F32 [16]"),
        ({"weight": np.zeros((N, K), np.float16)}, "weight is F16 [16, 128], expected I8 of two axes"),
        ({"weight_format": np.array(1, np.uint8)}, "weight_format is 1, expected 0: the order of rows"),
        ({"weight_format": np.zeros(0, np.uint8)}, "weight_format is U8 [0], expected U8 [1]"),
    ],
)
def test_hostile_layers_of_int8(tmp_path, changes, message):
    parts = bnb.int8(MATRIX)[0] | changes
    path = folder(tmp_path, {part: array for part, array in parts.items() if array is not None})
    with pytest.raises(qcore.QcoreValueError) as error:
        open_checkpoint(path)
    assert str(error.value).startswith(f"open_checkpoint: {path / 'model.safetensors'}: layer 'fc' (bitsandbytes)")
    assert message in str(error.value)


def test_what_cannot_be_read_is_listed_and_an_error_when_read(tmp_path):
    parts = bnb.four_bits(MATRIX, "nf4", 256)
    infinite = bnb.four_bits(MATRIX, "nf4", 64)
    infinite["weight.absmax"][3] = np.inf
    for given, message in [
        (parts, "block_size is 256 and K is 128, expected a divisor of K"),
        (infinite, "absmax has inf"),
    ]:
        with open_checkpoint(folder(tmp_path, given)) as checkpoint:
            assert checkpoint.info("fc.weight").shape == (N, K)
            with pytest.raises(qcore.QcoreValueError) as error:
                checkpoint["fc.weight"]
            assert str(error.value).startswith(f"{tmp_path / 'model.safetensors'}: tensor 'fc.weight': ")
            assert message in str(error.value)
