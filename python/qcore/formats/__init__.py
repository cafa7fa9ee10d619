"""Weights of other libraries' checkpoints as QuantizedTensor, and back where that is exact; and whole checkpoints.

One module per format, which has its layout. ``from_*`` never changes a value: ``dequantize()`` of the result is the
format's own float32 number. docs/formats.md has the table. ``checkpoint`` opens, saves and quantizes files of them.
"""

from qcore.formats.awq import from_awq, to_awq
from qcore.formats.awq_gemv import from_awq_gemv, to_awq_gemv
from qcore.formats.bitsandbytes import from_bitsandbytes_4bit, from_bitsandbytes_int8
from qcore.formats.checkpoint import Checkpoint, TensorInfo, load, open_checkpoint, save
from qcore.formats.compressed_tensors import from_compressed_tensors
from qcore.formats.compressed_tensors_float4 import from_compressed_tensors_mxfp4, from_compressed_tensors_nvfp4
from qcore.formats.gguf import from_gguf, to_gguf
from qcore.formats.gptq import from_gptq, to_gptq
from qcore.formats.hqq import from_hqq
from qcore.formats.mlx import from_mlx, to_mlx
from qcore.formats.mnn import from_mnn, to_mnn
from qcore.formats.onnx import from_onnx, to_onnx

__all__ = [
    "Checkpoint",
    "TensorInfo",
    "from_awq",
    "from_awq_gemv",
    "from_bitsandbytes_4bit",
    "from_bitsandbytes_int8",
    "from_compressed_tensors",
    "from_compressed_tensors_mxfp4",
    "from_compressed_tensors_nvfp4",
    "from_gguf",
    "from_gptq",
    "from_hqq",
    "from_mlx",
    "from_mnn",
    "from_onnx",
    "load",
    "open_checkpoint",
    "save",
    "to_awq",
    "to_awq_gemv",
    "to_gguf",
    "to_gptq",
    "to_mlx",
    "to_mnn",
    "to_onnx",
]
