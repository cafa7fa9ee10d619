"""Products of mixtures of experts over per-block quantized weights."""

from __future__ import annotations

from typing import Any

from qcore import _arrays, _checks, _core
from qcore._options import Compute
from qcore.linear import COMPUTE, activation_code
from qcore.quantized_tensor import QuantizedTensor


def grouped_linear(
    x: Any,
    weight: QuantizedTensor,
    row_counts: Any,
    bias: Any = None,
    *,
    compute: Compute = "int8",
    activation: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Multiply each row of x by the weight of its expert: the linear layers of a mixture of experts in one call.

    Args:
        x: float32, float16 or bfloat16 [M, K], any strides, on the weight's device; the rows of expert 0 first, then
            those of expert 1, and so on.
        weight: [E * N, K], the weights of E experts after each other: ``qcore.concatenate`` of them. Any N; on CUDA the
            kernel on tensor cores takes multiples of 16, others go to a slower one.
        row_counts: int32 or int64 [E], any stride, on x's device: how many rows each expert has, 0 or more, M in all.
            On CUDA the host neither reads them nor waits: a negative count is taken as 0, counts beyond M end there,
            and rows behind the last expert's become NaN.
        bias: floating-point [E, N], or None.
        compute: what x becomes inside, as in :func:`linear`.
        activation: None, "relu", "relu6", "silu", "gelu", or a clamp (lo, hi).
        out: where to write [M, N]; any strides, no memory in common with x, row_counts or bias. It is returned.
        out_dtype: float32, float16 or bfloat16; x's dtype by default. Not together with ``out``.
        stream: CUDA stream to run on; the caller's library's current one by default.

    Returns:
        [M, N] in x's library and on its device. Where the codes of x are integers, a row has the bits that
        :func:`linear` gives for it and its expert's weight; on the CPU with ``compute="float"`` too.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; ``out`` is then
            unchanged.
        CudaError: a CUDA call failed.

    Example:
        >>> import numpy as np, qcore
        >>> experts = [qcore.quantize(factor * np.eye(4, dtype=np.float32), block_size=4) for factor in (1, 2)]
        >>> x = np.array([[7, 0, 0, 0], [0, 7, 0, 0], [0, 0, 7, 0]], np.float32)
        >>> qcore.grouped_linear(x, qcore.concatenate(experts), np.array([1, 2]), compute="float")
        array([[ 7.,  0.,  0.,  0.],
               [ 0., 14.,  0.,  0.],
               [ 0.,  0., 14.,  0.]], dtype=float32)
    """
    where = "grouped_linear"
    if not isinstance(weight, QuantizedTensor):
        raise _core.QcoreTypeError(
            f"{where}: weight is a {type(weight).__name__}, expected a QuantizedTensor: qcore.concatenate(experts) "
            "makes one"
        )
    mode = _checks.choice(compute, COMPUTE, f"{where}: compute")
    kind, lo, hi = activation_code(activation, f"{where}: activation")
    dtype = None if out_dtype is None else _arrays.floating_dtype(out_dtype, f"{where}: out_dtype")
    x_backend = _arrays.backend_of(x, f"{where}: x")
    source = x_backend.readable(x, f"{where}: x")
    counts = _arrays.readable(row_counts, f"{where}: row_counts")
    if bias is not None:
        bias = _arrays.readable(bias, f"{where}: bias")
    address = _arrays.stream_address(stream, x_backend, x, f"{where}: stream")
    handle = weight._handle
    if out is not None:
        if dtype is not None:
            raise _core.QcoreValueError(f"{where}: out and out_dtype are both given, expected at most one of them")
        target = _arrays.backend_of(out, f"{where}: out").writable(out, f"{where}: out")
        _core.grouped_linear(source, handle, counts, bias, target, mode, kind, lo, hi, address)
        return out
    # The core refuses other shapes, before it looks at this one.
    experts = row_counts.shape[0] if len(row_counts.shape) == 1 else 0
    made = x_backend.empty(x, (*x.shape[:-1], handle.rows // max(experts, 1)), dtype)
    target = x_backend.writable(made, f"{where}: out")
    _core.grouped_linear(source, handle, counts, bias, target, mode, kind, lo, hi, address)
    return x_backend.result(made, x)
