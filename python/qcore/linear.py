"""Linear layers over per-block quantized weights."""

from __future__ import annotations

import math
from typing import Any

from qcore import _arrays, _checks, _core
from qcore._options import LinearCompute
from qcore.quantized_activations import QuantizedActivations, core_arguments, scale_number
from qcore.quantized_tensor import QuantizedTensor
from qcore.reordered_tensor import ReorderedTensor
from qcore.rotation import RotatedTensor, hadamard
from qcore.runtime import DEBUG, log_kernel, logs_kernels

COMPUTE = {
    "float": _core.ComputeMode.floating,
    "int8": _core.ComputeMode.int8,
    "int8_asym": _core.ComputeMode.int8_asym,
    "int16": _core.ComputeMode.int16,
}
LINEAR_COMPUTE = {**COMPUTE, "int8_token": _core.ComputeMode.int8_token}
_INT8 = COMPUTE["int8"]
_NONE, _CLAMP = _core.ActivationKind.none, _core.ActivationKind.clamp
_ACTIVATIONS: dict[Any, tuple[_core.ActivationKind, float, float]] = {
    None: (_NONE, 0.0, 0.0),
    "relu": (_CLAMP, 0.0, math.inf),
    "relu6": (_CLAMP, 0.0, 6.0),
    **{
        name: (getattr(_core.ActivationKind, name), 0.0, 0.0)
        for name in ("silu", "gelu", "gelu_tanh", "tanh", "sigmoid")
    },
}
_NAMES = ", ".join(map(repr, _ACTIVATIONS))
_EXPECTED = f"{_NAMES} or a pair (lo, hi)"
_GATED = "silu_mul"
_EXPECTED_LINEAR = f"{_NAMES}, {_GATED!r} or a pair (lo, hi)"


def activation_code(
    activation: Any, where: str, expected: str = _EXPECTED
) -> tuple[_core.ActivationKind, float, float]:
    """Return (kind, lo, hi) of an ``activation=`` argument."""
    try:
        return _ACTIVATIONS[activation]
    except (KeyError, TypeError):
        pass
    try:
        if isinstance(activation, (str, bytes)):
            raise TypeError
        lo, hi = (float(bound) for bound in activation)
    except (TypeError, ValueError, OverflowError):
        raise _core.QcoreValueError(f"{where} is {activation!r}, expected {expected}") from None
    return _CLAMP, lo, hi


def linear(
    x: Any,
    weight: QuantizedTensor | ReorderedTensor | RotatedTensor,
    bias: Any = None,
    *,
    compute: LinearCompute | None = None,
    x_scale: float | None = None,
    activation: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Compute ``activation(x @ weight.T + bias)`` with a per-block quantized weight.

    Args:
        x: float32, float16 or bfloat16 [..., K], any strides, on the weight's device; or QuantizedActivations, whose
            blocks are K long or a multiple of the weight's.
        weight: [N, K]. For a ReorderedTensor x is gathered first, on the library's current stream: no ``stream=`` then.
            For a RotatedTensor x is rotated first, in its dtype and on the CPU only.
        bias: floating-point [N], or None.
        compute: what x becomes inside. "int8": symmetric codes per row and block (the default); "int8_asym": with an
            offset, for one-sided activations; "int16": symmetric 16-bit codes, exact integer products, for models
            with massive activations; "float": unchanged, weights are dequantized on the fly; "int8_token": as "int8",
            but with one scale for all of a row, as checkpoints with "per token" activations mean it. None is "int8",
            or what x has if it is quantized; another mode is then an error.
        x_scale: for "int8" and "int8_token": the scale of all codes of x, as of :func:`quantize_activations`. None:
            each block's or row's own.
        activation: None, "relu", "relu6", "silu", "gelu" (with erf), "gelu_tanh", "tanh", "sigmoid", a clamp (lo, hi),
            or "silu_mul", for a weight whose first N / 2 rows are those of a gate: ``silu(gate) * up`` [..., N / 2], as
            :func:`qcore.decoder.gated_activation` gives it, with float32 in between. It takes no ``stream=``.
        out: where to write [..., N]; any strides, no memory in common with x or bias. It is returned.
        out_dtype: float32, float16 or bfloat16; x's dtype by default, float32 if x is quantized. Not together with
            ``out``.
        stream: CUDA stream to run on; the caller's library's current one by default.

    Returns:
        [..., N] in x's library and on its device. A row of x with a NaN or an infinity gives NaN wherever the codes
        are integers.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; ``out`` is then
            unchanged.
        CudaError: a CUDA call failed.

    Example:
        >>> import numpy as np, qcore
        >>> weight = qcore.quantize(np.eye(4, dtype=np.float32), bits=8, block_size=4)
        >>> qcore.linear(np.array([[1, 2, 3, 4]], np.float32), weight, compute="float", activation=(0, 3))
        array([[1., 2., 3., 3.]], dtype=float32)
    """
    if isinstance(weight, ReorderedTensor):
        x, weight = _gathered(x, weight, stream), weight.weight
    elif isinstance(weight, RotatedTensor):
        x, weight = _rotated(x, weight), weight.weight
    if not isinstance(weight, QuantizedTensor):
        raise no_weight(weight, x, "linear", "linear(x, weight)")
    if isinstance(activation, str) and activation == _GATED:
        return _silu_mul(x, weight, bias, compute, x_scale, (out, out_dtype), stream)
    kind, lo, hi = _ACTIVATIONS[None]
    if activation is not None:
        kind, lo, hi = activation_code(activation, "linear: activation", _EXPECTED_LINEAR)
    dtype = None if out_dtype is None else _arrays.floating_dtype(out_dtype, "linear: out_dtype")
    if isinstance(x, QuantizedActivations):
        _check_quantized(x, compute, x_scale, "linear")
        return _of_codes("linear", _core.linear_of_codes, x, weight, (), bias, (kind, lo, hi), (out, dtype), stream)
    mode, scale = _mode_and_scale(compute, x_scale, "linear")
    x_backend = _arrays.backend_of(x, "linear: x")
    source = x_backend.readable(x, "linear: x")
    if bias is not None:
        bias = _arrays.readable(bias, "linear: bias")
    address = x_backend.stream(x) if stream is None else _arrays.stream_address(stream, x_backend, x, "linear: stream")
    handle = weight._handle
    if out is not None:
        if dtype is not None:
            raise _core.QcoreValueError("linear: out and out_dtype are both given, expected at most one of them")
        target = _arrays.backend_of(out, "linear: out").writable(out, "linear: out")
        _core.linear(source, handle, bias, target, mode, scale, kind, lo, hi, address)
        if logs_kernels(DEBUG):
            log_kernel("linear", x, weight)
        return out
    out = x_backend.empty(x, (*_arrays.shape_of(x, "linear: x")[:-1], handle.rows), dtype, "linear: x")
    _core.linear(source, handle, bias, x_backend.writable(out, "linear: out"), mode, scale, kind, lo, hi, address)
    if logs_kernels(DEBUG):
        log_kernel("linear", x, weight)
    return x_backend.result(out, x)


def _silu_mul(
    x: Any, weight: QuantizedTensor, bias: Any, compute: Any, x_scale: Any, output: tuple[Any, Any], stream: Any
) -> Any:
    """Multiply the second half of a linear layer's results by silu of the first."""
    out, out_dtype = output
    rows = weight.shape[0]
    if len(weight.shape) != 2 or rows % 2:
        raise _core.QcoreValueError(
            f"linear: activation is {_GATED!r} and weight has shape {list(weight.shape)}, expected [N, K] with an even "
            "N: the rows of the gate, then those of what it multiplies"
        )
    if stream is not None:
        raise _core.QcoreValueError(
            f"linear: stream is given for activation={_GATED!r}, expected None: it runs on the current one"
        )
    dtype = None if out_dtype is None else _arrays.floating_dtype(out_dtype, "linear: out_dtype")
    if out is not None and dtype is not None:
        raise _core.QcoreValueError("linear: out and out_dtype are both given, expected at most one of them")
    quantized = isinstance(x, QuantizedActivations)
    like = x.codes if quantized else x
    backend = _arrays.backend_of(like, "linear: x")
    shape = (*_arrays.shape_of(like, "linear: x")[:-1], rows // 2)
    target = None
    if out is not None:
        target = _arrays.backend_of(out, "linear: out").writable(out, "linear: out")
        if tuple(out.shape) != shape:
            raise _core.QcoreValueError(f"linear: out has shape {list(out.shape)}, expected {list(shape)}")
        _arrays.floating_dtype(out.dtype, "linear: out")
    halves = linear(x, weight, bias, compute=compute, x_scale=x_scale, out_dtype="float32")
    source, address = _arrays.readable(halves, "linear: x"), backend.stream(like)
    if target is not None:
        _core.decoder_gated_activation(source, target, _core.GateActivation.silu, address)
        return out
    made = backend.empty(like, shape, "float32" if quantized and dtype is None else dtype, "linear: x")
    _core.decoder_gated_activation(source, backend.writable(made, "linear: out"), _core.GateActivation.silu, address)
    return backend.result(made, like)


def no_weight(weight: Any, x: Any, op: str, call: str, maker: str = "qcore.quantize(weight)") -> _core.QcoreTypeError:
    """Return the error for something else in the place of a weight, which may be that of x by mistake."""
    given = type(weight).__name__
    if isinstance(x, QuantizedTensor):
        first = call.partition("(")[2].partition(",")[0]
        return _core.QcoreTypeError(
            f"{op}: {first} is a QuantizedTensor and weight is a {given}, expected {call}: the arguments seem to be "
            "swapped"
        )
    return _core.QcoreTypeError(f"{op}: weight is a {given}, expected a QuantizedTensor: {maker} makes one")


def _mode_and_scale(compute: Any, x_scale: Any, where: str) -> tuple[_core.ComputeMode, float]:
    mode = _INT8 if compute is None else _checks.choice(compute, LINEAR_COMPUTE, f"{where}: compute")
    return mode, scale_number(x_scale, f"{where}: x_scale")


def _check_quantized(x: QuantizedActivations, compute: Any, x_scale: Any, where: str) -> None:
    if compute is not None and compute != x.compute:
        _checks.choice(compute, LINEAR_COMPUTE, f"{where}: compute")
        raise _core.QcoreValueError(
            f"{where}: compute is {compute!r}, expected None or {x.compute!r}: x is quantized so already"
        )
    if x_scale is not None:
        raise _core.QcoreValueError(f"{where}: x_scale is {x_scale!r}, expected None: x is quantized already")


def _of_codes(
    where: str,
    call: Any,
    x: QuantizedActivations,
    weight: QuantizedTensor,
    extra: tuple[Any, ...],
    bias: Any,
    activation: tuple[Any, float, float],
    output: tuple[Any, str | None],
    stream: Any,
    experts: int = 1,
) -> Any:
    """Call the core with codes: call(x, weight, *extra, bias, out, *activation, stream)."""
    backend = _arrays.backend_of(x.codes, f"{where}: x.codes")
    parts = core_arguments(x, where, "x")
    if bias is not None:
        bias = _arrays.readable(bias, f"{where}: bias")
    address = _arrays.stream_address(stream, backend, x.codes, f"{where}: stream")
    handle = weight._handle
    out, dtype = output
    if out is not None:
        if dtype is not None:
            raise _core.QcoreValueError(f"{where}: out and out_dtype are both given, expected at most one of them")
        target = _arrays.backend_of(out, f"{where}: out").writable(out, f"{where}: out")
        call(parts, handle, *extra, bias, target, *activation, address)
        return out
    shape = (*_arrays.shape_of(x.codes, f"{where}: x.codes")[:-1], handle.rows // experts)
    made = backend.empty(x.codes, shape, dtype or "float32", f"{where}: x.codes")
    call(parts, handle, *extra, bias, backend.writable(made, f"{where}: out"), *activation, address)
    return backend.result(made, x.codes)


def grouped_linear(
    x: Any,
    weight: QuantizedTensor,
    row_counts: Any,
    bias: Any = None,
    *,
    compute: LinearCompute | None = None,
    x_scale: float | None = None,
    activation: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Multiply each row of x by the weight of its expert: the linear layers of a mixture of experts in one call.

    Args:
        x: float32, float16 or bfloat16 [M, K], any strides, on the weight's device, or QuantizedActivations as for
            :func:`linear`; the rows of expert 0 first, then those of expert 1, and so on.
        weight: [E * N, K], the weights of E experts after each other: ``qcore.concatenate`` of them. Any N; on CUDA the
            kernel on tensor cores takes multiples of 16, others go to a slower one.
        row_counts: int32 or int64 [E], any stride, on x's device: how many rows each expert has, 0 or more, M in all.
            On CUDA the host neither reads them nor waits: a negative count is taken as 0, counts beyond M end there,
            and rows behind the last expert's become NaN.
        bias: floating-point [E, N], or None.
        compute: what x becomes inside, as in :func:`linear`.
        x_scale: the scale of all codes of x, as in :func:`linear`.
        activation: None, "relu", "relu6", "silu", "gelu" (with erf), "gelu_tanh", "tanh", "sigmoid", or a clamp
            (lo, hi).
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
        raise no_weight(weight, x, where, "grouped_linear(x, weight, row_counts)", "qcore.concatenate(experts)")
    kind, lo, hi = activation_code(activation, f"{where}: activation")
    dtype = None if out_dtype is None else _arrays.floating_dtype(out_dtype, f"{where}: out_dtype")
    # The core refuses other shapes, before it looks at the one of y.
    counted = _arrays.shape_of(row_counts, f"{where}: row_counts")
    experts = counted[0] if len(counted) == 1 else 0
    if isinstance(x, QuantizedActivations):
        _check_quantized(x, compute, x_scale, where)
        counts = _arrays.readable(row_counts, f"{where}: row_counts")
        options = (kind, lo, hi), (out, dtype), stream, max(experts, 1)
        return _of_codes(where, _core.grouped_linear_of_codes, x, weight, (counts,), bias, *options)
    mode, scale = _mode_and_scale(compute, x_scale, where)
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
        _core.grouped_linear(source, handle, counts, bias, target, mode, scale, kind, lo, hi, address)
        return out
    shape = (*_arrays.shape_of(x, f"{where}: x")[:-1], handle.rows // max(experts, 1))
    made = x_backend.empty(x, shape, dtype, f"{where}: x")
    target = x_backend.writable(made, f"{where}: out")
    _core.grouped_linear(source, handle, counts, bias, target, mode, scale, kind, lo, hi, address)
    return x_backend.result(made, x)


def embedding(
    indices: Any, weight: QuantizedTensor, *, out: Any = None, out_dtype: Any = None, stream: Any = None
) -> Any:
    """Look up rows of a quantized weight: ``weight[indices]``, dequantized.

    Args:
        indices: int32 or int64 [...], any strides, on the weight's device; 0 to N - 1. On CUDA an index outside gives
            a row of NaN instead of an error.
        weight: [N, K].
        out: where to write [..., K], float32, float16 or bfloat16, any strides. It is returned.
        out_dtype: float32 (the default), float16 or bfloat16. Not together with ``out``.
        stream: CUDA stream to run on; the caller's library's current one by default.

    Returns:
        [..., K] in the library of ``indices``: each value is ``scale * code + offset``, rounded to float32 and then to
        the dtype.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; ``out`` is then
            unchanged.
        CudaError: a CUDA call failed.

    Example:
        >>> import numpy as np, qcore
        >>> weight = qcore.quantize(np.eye(4, dtype=np.float32), bits=8, block_size=4)
        >>> qcore.embedding(np.array([2, 0]), weight)
        array([[0., 0., 1., 0.],
               [1., 0., 0., 0.]], dtype=float32)
    """
    if not isinstance(weight, QuantizedTensor):
        raise no_weight(weight, indices, "embedding", "embedding(indices, weight)")
    dtype = _arrays.floating_dtype(out_dtype, "embedding: out_dtype")
    backend = _arrays.backend_of(indices, "embedding: indices")
    source = backend.readable(indices, "embedding: indices")
    address = _arrays.stream_address(stream, backend, indices, "embedding: stream")
    if out is not None:
        if dtype is not None:
            raise _core.QcoreValueError("embedding: out and out_dtype are both given, expected at most one of them")
        target = _arrays.backend_of(out, "embedding: out").writable(out, "embedding: out")
        _core.embedding(source, weight._handle, target, address)
        return out
    shape = (*_arrays.shape_of(indices, "embedding: indices"), weight.shape[1])
    made = backend.empty(indices, shape, dtype or "float32", "embedding: indices")
    _core.embedding(source, weight._handle, backend.writable(made, "embedding: out"), address)
    return backend.result(made, indices)


def _rotated(x: Any, weight: RotatedTensor) -> Any:
    _arrays.backend_of(x, "linear: x")
    shape = _arrays.shape_of(x, "linear: x")
    if len(shape) == 0 or shape[-1] != weight.shape[1]:
        raise _core.QcoreValueError(
            f"linear: x has shape {list(shape)}, expected [..., {weight.shape[1]}] for a weight of shape "
            f"{list(weight.shape)}"
        )
    return hadamard(x, weight.rotation_block)


def _gathered(x: Any, weight: ReorderedTensor, stream: Any) -> Any:
    x_backend = _arrays.backend_of(x, "linear: x")
    if stream is not None:
        raise _core.QcoreValueError(
            "linear: stream is given for a ReorderedTensor, expected None: x is gathered on the current one"
        )
    shape = _arrays.shape_of(x, "linear: x")
    if len(shape) == 0 or shape[-1] != len(weight.order):
        raise _core.QcoreValueError(
            f"linear: x has shape {list(shape)}, expected [..., {len(weight.order)}] for a weight of shape "
            f"{list(weight.shape)}"
        )
    return x_backend.take(x, weight.order)
