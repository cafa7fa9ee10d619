"""qcore.save takes torch's tensors, bfloat16 included."""

import ml_dtypes
import numpy as np
import pytest
import torch

import qcore


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "bool"])
def test_tensors_are_saved(tmp_path, dtype):
    values = np.arange(6).reshape(2, 3)
    tensor = torch.from_numpy(values).to(getattr(torch, dtype)).requires_grad_(dtype == "float32")
    qcore.save(tmp_path / "t.safetensors", {"t": tensor, "strided": tensor.T})
    loaded = qcore.load(tmp_path / "t.safetensors")
    expected = values.astype(getattr(ml_dtypes, dtype, dtype))
    assert loaded["t"].dtype == expected.dtype
    assert np.array_equal(loaded["t"], expected)
    assert np.array_equal(loaded["strided"], expected.T)


def test_the_torch_side_of_safetensors_reads_the_file(tmp_path):
    from safetensors.torch import load_file

    tensor = torch.randn(3, 5, dtype=torch.bfloat16)
    qcore.save(tmp_path / "t.safetensors", {"t": tensor, "w": qcore.quantize(np.eye(4, 8, dtype=np.float32))})
    loaded = load_file(tmp_path / "t.safetensors")
    assert torch.equal(loaded["t"], tensor)
    assert loaded["w.codes"].dtype is torch.uint8
