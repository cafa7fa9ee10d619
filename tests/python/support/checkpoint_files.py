"""Small checkpoints for tests: safetensors and GGUF files built byte by byte, without qcore."""

import json
import struct

import numpy as np
from safetensors.numpy import save_file

GGUF_F32, GGUF_F16, GGUF_Q8_0 = 0, 1, 8


def model(seed=0):
    """Return a float model: two linear layers, a convolution in fp16, and what stays float."""
    rng = np.random.default_rng(seed)
    return {
        "embed.weight": rng.standard_normal((30, 20), dtype=np.float32),
        "layers.0.weight": rng.standard_normal((24, 64), dtype=np.float32),
        "layers.0.bias": rng.standard_normal(24, dtype=np.float32),
        "layers.1.weight": rng.standard_normal((9, 70)).astype(np.float16),
        "norm.weight": rng.standard_normal((4, 4), dtype=np.float32),
        "conv.weight": rng.standard_normal((8, 5, 3, 3), dtype=np.float32),
        "ids": np.arange(4),
    }


def raw_safetensors(path, header, data=b"", length=None):
    """Write a file with exactly this header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def sharded(folder, tensors, shards=2):
    """model-1.safetensors, ... and the index."""
    folder.mkdir(exist_ok=True)
    weight_map = {}
    for number in range(shards):
        names = sorted(tensors)[number::shards]
        file = f"model-{number + 1}.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def gguf_string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(path, tensors, metadata=b"", values=0, version=3, alignment=32):
    """``tensors``: {name: (type, shape outermost first, bytes)}."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), values) + metadata
    data = b""
    for name, (kind, shape, content) in tensors.items():
        data += b"\0" * (-len(data) % alignment)
        head += gguf_string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, len(data))
        data += content
    path.write_bytes(head + b"\0" * (-len(head) % alignment) + data)
    return path


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "checkpoint_format": "gptq_v2"}


def packed_folder(folder, config, n=16, k=64, g=32):
    """One layer "layer" in the layout of ``config``, filled at random, and an array beside it."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    words = lambda *shape: rng.integers(-(2**31), 2**31, shape, dtype=np.int64).astype(np.int32)  # noqa: E731
    scales = rng.uniform(0.01, 0.02, (k // g, n)).astype(np.float16)
    if config is not None and config.get("quant_method") == "gptq":
        layer = {"qweight": words(k // 8, n), "g_idx": (np.arange(k) // g).astype(np.int32)}
    else:
        layer = {"qweight": words(k, n // 8)}
    layer |= {"qzeros": words(k // g, n // 8), "scales": scales}
    tensors = {f"layer.{part}": array for part, array in layer.items()}
    save_file(tensors | {"bias": np.ones(n, np.float32)}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder
