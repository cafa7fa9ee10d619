"""Weights of MLX in mxfp4 and nvfp4, against MLX on the CPU."""

import mlx.core as mx
import numpy as np
import pytest

import qcore
from qcore import formats

mx.set_default_device(mx.cpu)
BLOCKS = {"mxfp4": 32, "nvfp4": 16}


def random_arrays(mode, seed=0):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (16, 32), dtype=np.uint64).astype(np.uint32)
    scales = rng.integers(0, 253, (16, 256 // BLOCKS[mode])).astype(np.uint8)
    if mode == "nvfp4":
        scales[scales & 0x7F == 0x7F] = 0
    return mx.array(words), mx.array(scales)


@pytest.mark.parametrize("mode", BLOCKS)
@pytest.mark.parametrize("source", ["random", "quantized"])
def test_every_value_is_mlxs_own(mode, source):
    if source == "random":
        arrays = random_arrays(mode)
    else:
        w = mx.array(np.random.default_rng(1).standard_normal((16, 256), dtype=np.float32))
        arrays = mx.quantize(w, group_size=BLOCKS[mode], bits=4, mode=mode)
    expected = mx.dequantize(*arrays, None, BLOCKS[mode], 4, mode, dtype=mx.float32)
    weight = formats.from_mlx(*arrays, block_size=BLOCKS[mode], mode=mode)
    assert np.array_equal(weight.dequantize(), np.array(expected))
    assert weight.bits_per_weight == 4 + 8 / BLOCKS[mode]


def test_global_scale():
    arrays, factor = random_arrays("nvfp4"), mx.array(3.7, dtype=mx.float32)
    options = {"global_scale": factor, "dtype": mx.float32}
    expected = np.array(mx.dequantize(*arrays, None, 16, 4, "nvfp4", **options))
    weight = formats.from_mlx(*arrays, block_size=16, mode="nvfp4", global_scale=factor)
    assert (np.abs(weight.dequantize() - expected) <= 2.0**-22 * np.abs(expected)).all()


def test_scales_that_are_nan():
    words, scales = random_arrays("nvfp4")
    scales[3, 5] = 0x7F
    with pytest.raises(
        qcore.QcoreValueError, match=r"^from_mlx: scales has a NaN of e4m3, in row 3, block 5, expected"
    ):
        formats.from_mlx(words, scales, block_size=16, mode="nvfp4")
