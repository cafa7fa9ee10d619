"""Convolutions over per-block quantized weights."""

from __future__ import annotations

from typing import Any

from qcore import _arrays, _checks, _conv_params, _core
from qcore._options import Compute
from qcore.linear import COMPUTE, activation_code, no_weight
from qcore.quantized_tensor import QuantizedTensor


def conv2d(
    x: Any,
    weight: QuantizedTensor,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    compute: Compute = "int8",
    activation: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Compute a two-dimensional convolution with a per-block quantized weight.

    Like every framework's: a cross-correlation, without turning the kernel around.

    Args:
        x: float32, float16 or bfloat16 [N, Ci, H, W], any strides (channels_last is taken as it is), on the weight's
            device.
        weight: [Co, Ci / groups, Kh, Kw], blocked along its channels.
        bias: floating-point [Co], or None.
        stride: an integer or (H, W).
        padding: an integer, (H, W), (top, left, bottom, right), "valid" (none) or "same": with stride 1 the result is
            as large as x, and an odd padding is larger at the end. Padded elements are the real value 0.
        dilation: an integer or (H, W).
        groups: of channels; each group of Co / groups outputs sees its own Ci / groups inputs.
        compute: what x becomes inside, per pixel and block of channels: "int8" (the default), "int8_asym", "int16" or
            "float", as for :func:`qcore.linear`.
        activation: None, "relu", "relu6", "silu", "gelu" (with erf), "gelu_tanh", "tanh", "sigmoid", or a clamp
            (lo, hi).
        out: where to write [N, Co, Ho, Wo]; any strides, no memory in common with x or bias. It is returned.
        out_dtype: float32, float16 or bfloat16; x's dtype by default. Not together with ``out``.
        stream: CUDA stream to run on; the caller's library's current one by default.

    Returns:
        [N, Co, Ho, Wo] in x's library and on its device, channels_last if x is. A pixel with a NaN or an infinity makes
        every result that sees it NaN wherever the codes are integers.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; ``out`` is then
            unchanged.
        CudaError: a CUDA call failed.

    Example:
        >>> import numpy as np, qcore
        >>> weight = qcore.quantize(np.ones((1, 1, 2, 2), np.float32), bits=8, block_size=1)
        >>> qcore.conv2d(np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), weight, compute="float")
        array([[[[ 8., 12.],
                 [20., 24.]]]], dtype=float32)
    """
    if not isinstance(weight, QuantizedTensor):
        raise no_weight(weight, x, "conv2d", "conv2d(x, weight)")
    mode = _checks.choice(compute, COMPUTE, "conv2d: compute")
    kind, lo, hi = activation_code(activation, "conv2d: activation")
    params = _conv_params.make(stride, padding, dilation, groups, "conv2d", weight.shape[2:] or (1, 1))
    dtype = _arrays.floating_dtype(out_dtype, "conv2d: out_dtype")
    x_backend = _arrays.backend_of(x, "conv2d: x")
    source = x_backend.readable(x, "conv2d: x")
    if bias is not None:
        bias = _arrays.readable(bias, "conv2d: bias")
    address = _arrays.stream_address(stream, x_backend, x, "conv2d: stream")
    handle = weight._handle
    if out is not None:
        if dtype is not None:
            raise _core.QcoreValueError("conv2d: out and out_dtype are both given, expected at most one of them")
        target = _arrays.backend_of(out, "conv2d: out").writable(out, "conv2d: out")
        _core.conv2d(source, handle, bias, target, params, mode, kind, lo, hi, address)
        return out
    out = x_backend.empty_image(x, _core.conv2d_shape(source, handle, params), dtype, "conv2d: x")
    _core.conv2d(source, handle, bias, x_backend.writable(out, "conv2d: out"), params, mode, kind, lo, hi, address)
    return x_backend.result(out, x)
