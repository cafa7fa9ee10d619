"""A model that MLX quantized and saved, through open_checkpoint: MLX's own values."""

import json

import mlx.core as mx
import numpy as np
import pytest

from qcore.formats import open_checkpoint

mx.set_default_device(mx.cpu)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_folder(tmp_path, dtype):
    rng = np.random.default_rng(0)
    quantization = {"group_size": 64, "bits": 4, "head": {"group_size": 32, "bits": 8}}
    tensors, expected = {"norm.weight": mx.ones(8)}, {}
    for name in ("fc", "head"):
        options = quantization.get(name) or {"group_size": 64, "bits": 4}
        w = mx.array(rng.standard_normal((6, 256), dtype=np.float32)).astype(dtype)
        words, *parameters = mx.quantize(w, **options)
        tensors |= dict(zip((f"{name}.weight", f"{name}.scales", f"{name}.biases"), (words, *parameters), strict=True))
        wide = (each.astype(mx.float32) for each in parameters)  # so that the sum is MLX's only rounding
        expected[f"{name}.weight"] = np.array(mx.dequantize(words, *wide, **options))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors, metadata={"format": "mlx"})
    (tmp_path / "config.json").write_text(json.dumps({"quantization": quantization}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint) == {"fc.weight", "head.weight", "norm.weight"}
        for name, values in expected.items():
            assert np.array_equal(checkpoint[name].dequantize(), values)
