"""Weights of compressed-tensors in mxfp4 and nvfp4, against the package."""

import numpy as np
import pytest
import torch

from qcore import formats

pytest.importorskip("compressed_tensors")
from compressed_tensors.compressors import MXFP4PackedCompressor, NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme


def scheme(strategy, group_size):
    arguments = {"num_bits": 4, "type": "float", "strategy": strategy, "group_size": group_size, "symmetric": True}
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))


def packed(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (16, 128)).astype(np.uint8))


def test_mxfp4():
    """The package's bfloat16 holds the products, whose factors have two bits and one."""
    exponents = torch.from_numpy(np.random.default_rng(1).integers(0, 253, (16, 8)).astype(np.uint8))
    parts = {"weight_packed": packed(), "weight_scale": exponents}
    expected = MXFP4PackedCompressor.decompress(parts, scheme("group", 32))["weight"]
    weight = formats.from_compressed_tensors_mxfp4(packed(), exponents)
    assert np.array_equal(weight.dequantize(), expected.float().numpy())
    assert weight.bits_per_weight == 4.25


@pytest.mark.parametrize("global_scale", [1.0, 512.0, 1234.567])
def test_nvfp4(global_scale):
    numbers = np.random.default_rng(1).integers(0, 0x7F, (16, 16)).astype(np.uint8)
    scales, factor = torch.from_numpy(numbers).view(torch.float8_e4m3fn), torch.tensor([global_scale])
    parts = {"weight_packed": packed(), "weight_scale": scales, "weight_global_scale": factor}
    expected = NVFP4PackedCompressor.decompress(parts, scheme("tensor_group", 16))["weight"]
    weight = formats.from_compressed_tensors_nvfp4(packed(), scales, factor)
    got = torch.from_numpy(weight.dequantize()).bfloat16()
    assert torch.equal(got, expected)
    assert weight.bits_per_weight == 4.5
