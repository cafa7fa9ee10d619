"""qcore: low-precision neural-network operators for any framework, with one exact meaning of every integer.

Shape letters, the same everywhere: M rows of activations (batch x tokens), K input features, N output features, g block
size along K, P = ceil(K / g) blocks.
"""

from qcore import awq, formats, lut
from qcore._core import CudaError, QcoreError, QcoreTypeError, QcoreValueError, __version__
from qcore.awq_scaling import AwqScales, awq_scales, fold_scales
from qcore.formats import load, save
from qcore.linear import linear, quantize_activations
from qcore.quantized_tensor import QuantizedTensor, quantize
from qcore.reordered_tensor import ReorderedTensor
from qcore.runtime import force_kernel, get_num_threads, info, kernels, last_kernel, set_num_threads

__all__ = [
    "AwqScales",
    "CudaError",
    "QcoreError",
    "QcoreTypeError",
    "QcoreValueError",
    "QuantizedTensor",
    "ReorderedTensor",
    "__version__",
    "awq",
    "awq_scales",
    "fold_scales",
    "force_kernel",
    "formats",
    "get_num_threads",
    "info",
    "kernels",
    "last_kernel",
    "linear",
    "load",
    "lut",
    "quantize",
    "quantize_activations",
    "save",
    "set_num_threads",
]
