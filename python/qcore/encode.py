"""Quantizes weights into encodings: codes of any width, parameters of any type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from qcore import _arrays, _checks, _core
from qcore._options import named_arguments
from qcore.methods.samples import mean_squares
from qcore.quantized_tensor import QuantizedTensor
from qcore.weight_encoding import E2M1_CODEBOOK, ENCODINGS, WeightEncoding

_WHERE = "quantize_encoded"
_METHODS = {"rtn": _core.Method.rtn, "mse": _core.Method.mse, "awq": _core.Method.awq}
_LARGEST_E4M3 = 448.0


@named_arguments("quantize_encoded", 'quantize_encoded(weight, "q4_k")')
def quantize_encoded(
    weight: Any,
    encoding: str | WeightEncoding,
    block_size: int | None = None,
    *,
    method: Literal["rtn", "mse", "awq"] = "mse",
    samples: Any = None,
) -> QuantizedTensor:
    """Quantize a weight into an encoding, such as a k-quant, MXFP4, or codes of 3 bits with zero points.

    Args:
        weight: float32, float16 or bfloat16 [N, K] on the CPU, any strides, finite.
        encoding: how the weight is stored, or a name: "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q4_1", "q5_0", "q5_1",
            "iq4_nl", "iq4_xs", "tq2_0", "mxfp4" and "nvfp4" as in GGUF files, "nf4" as bitsandbytes' (16 integers and
            float16 scales). By the name "nvfp4", the tensor scale gives the largest block the largest scale.
        block_size: elements along K that share a scale; the last block of a row may be shorter. Names have one.
        method: "rtn" takes the smallest scales that clip nothing, rounded to their type (for e8m0 the exponent of the
            OCP's Microscaling Formats 1.0). "mse" searches for the smallest squared error: over clipped ranges of each
            block, over numbers of integer scales and offsets together with their super-parameters, and by least
            squares. "awq" is "mse" with ``samples``.
        samples: inputs of the layer, numbers [M, K]; an error of k then counts by the mean of x_k^2. Needed for "awq",
            optional for "mse".

    Returns:
        The encoded weight. Integer offsets are never positive, and scales of 8-bit floats never negative.

    Raises:
        QcoreValueError: a NaN or Inf (its index is named), a scale or an offset that the encoding cannot hold, samples
            that the method needs and lacks or does not take, or an impossible encoding, shape or option.
        QcoreTypeError: another dtype, or no array.

    Example:
        >>> import numpy as np, qcore
        >>> weight = np.random.default_rng(0).standard_normal((256, 512), dtype=np.float32)
        >>> qcore.quantize_encoded(weight, "q4_k").bits_per_weight
        4.5
    """
    mode = _checks.choice(method, _METHODS, f"{_WHERE}: method")
    if isinstance(encoding, WeightEncoding):
        if block_size is None:
            raise _core.QcoreValueError(f"{_WHERE}: block_size is None, expected an integer with a WeightEncoding")
        chosen, size = encoding, block_size
    else:
        chosen, size = _checks.choice(encoding, ENCODINGS, f"{_WHERE}: encoding")
        size = size if block_size is None else block_size
    if (method == "rtn" and samples is not None) or (method == "awq" and samples is None):
        raise _core.QcoreValueError(
            f"{_WHERE}: samples is {'missing' if samples is None else 'given'}, expected inputs [M, K] with "
            "method='awq', optional ones with 'mse', and None with 'rtn'"
        )
    importance = None
    if samples is not None:
        features = weight.shape[1] if len(weight.shape) == 2 else 0
        importance = mean_squares(samples, features, f"{_WHERE}: samples")
    if encoding == "nvfp4":
        _arrays.readable(weight, f"{_WHERE}: weight")
        chosen = replace(chosen, tensor_scale=_nv_scale(weight))
    return encode_weighted(weight, chosen, size, mode, importance)


def encode_weighted(
    weight: Any, encoding: WeightEncoding, block_size: Any, method: _core.Method, importance: Any
) -> QuantizedTensor:
    """Quantize as :func:`quantize_encoded`, with the importance [K] of input channels in the place of samples.

    That is what :func:`qcore.methods.samples.mean_squares` returns, or None. Pieces of a weight's rows then share it.
    """
    size = _checks.integer(block_size, f"{_WHERE}: block_size")
    array = _arrays.readable(weight, f"{_WHERE}: weight")
    mode = method if importance is None else _core.Method.awq
    return QuantizedTensor._of(_core.quantize_encoded(array, encoding._native(), size, mode, importance))


def _nv_scale(weight: Any) -> float:
    """Return the factor with which the largest magnitude gets the largest scale and the largest code."""
    values = weight.detach().float().numpy() if hasattr(weight, "detach") else np.asarray(weight, np.float32)
    return nv_tensor_scale(float(np.abs(values).max(initial=0.0)))


def nv_tensor_scale(largest: float) -> float:
    """Return the tensor scale of "nvfp4" for a weight whose largest magnitude is given; 0.5 if it has none or a NaN."""
    scale = largest / (_LARGEST_E4M3 * max(E2M1_CODEBOOK))
    return scale if np.isfinite(scale) and scale > 2.0**-126 else 0.5
