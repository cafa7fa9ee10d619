"""Weights of bitsandbytes, against the package on the CPU."""

import numpy as np
import pytest
import torch

from qcore import formats

functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
ERRORS = {"nf4": 0.0039, "fp4": 0.0032}


def random_weight():
    return torch.from_numpy(np.random.default_rng(0).standard_normal((24, 256), dtype=np.float32))


@pytest.mark.parametrize("quant_type", ERRORS)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_four_bits_within_the_tables_error(quant_type, nested, size):
    options = {"quant_type": quant_type, "compress_statistics": nested, "blocksize": size}
    packed, state = functional.quantize_4bit(random_weight(), **options)
    expected = functional.dequantize_4bit(packed, state).numpy()
    absmax, more = state.absmax, {}
    if nested:
        more = {"nested_absmax": state.state2.absmax, "nested_quant_map": state.state2.code}
        more["nested_offset"] = state.offset.item()
        absmax = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    weight = formats.from_bitsandbytes_4bit(
        packed, state.absmax, quant_type=quant_type, shape=tuple(state.shape), block_size=size, **more
    )
    error = np.abs(weight.dequantize() - expected) / np.repeat(absmax.numpy().reshape(24, -1), size, axis=1)
    assert 0 < error.max() <= ERRORS[quant_type]
    if nested:
        same = formats.from_bitsandbytes_4bit(
            packed, absmax, quant_type=quant_type, shape=tuple(state.shape), block_size=size
        )
        assert same == weight


def test_int8():
    codes = torch.from_numpy(np.random.default_rng(1).integers(-127, 128, (24, 256)).astype(np.int8))
    rows = random_weight().abs().amax(dim=1)
    expected = functional.int8_vectorwise_dequant(codes, rows).numpy()
    got = formats.from_bitsandbytes_int8(codes, rows).dequantize()
    assert (np.abs(got - expected) <= 2.0**-22 * np.abs(expected)).all()
