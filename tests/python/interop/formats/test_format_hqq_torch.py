"""Weights of HQQ, against the package."""

import numpy as np
import pytest
import torch

from qcore import formats

quantizer = pytest.importorskip("hqq.core.quantize", reason="HQQ is not installed").Quantizer


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("round_zero", [False, True])
def test_every_value_is_hqqs_own(bits, dtype, round_zero):
    """HQQ rounds its result in the dtype of its computation: float64 here, which holds every product."""
    w = torch.from_numpy(np.random.default_rng(0).standard_normal((24, 128), dtype=np.float32))
    options = {"nbits": bits, "group_size": 32, "axis": 1, "round_zero": round_zero}
    weight, meta = quantizer.quantize(w, device="cpu", optimize=False, compute_dtype=dtype, **options)
    meta |= {"scale": meta["scale"].to(dtype), "zero": meta["zero"].to(dtype), "compute_dtype": torch.float64}
    expected = quantizer.dequantize(weight, meta).float()
    # torch's exchange gives NumPy no bfloat16.
    scale, zero = (meta[each] if dtype == torch.float16 else meta[each].float() for each in ("scale", "zero"))
    got = formats.from_hqq(weight, scale, zero, bits=bits, shape=tuple(meta["shape"]), block_size=32)
    assert got.bits == bits
    assert np.array_equal(got.dequantize(), expected.numpy())
