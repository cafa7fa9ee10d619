"""AWQ's 4-bit weights as its gemm kernels have them: dequantization, and linear layers without the dequantized weight.

A weight is three arrays, ``W[k, n] = (u - z) * s``: ``qweight`` int32 [K, N/8], a word holding 8 neighboring columns n
with column n in nibble (n % 8) // 2 + 4 * (n % 2); ``scales`` float16 [K/g, N]; ``qzeros`` int32 [K/g, N/8], as
``qweight``. g rows share a scale and a zero. Source of the layout: AutoAWQ and llm-awq (arXiv 2306.00978); docs/awq.md.
"""

from __future__ import annotations

from typing import Any

from qcore import _arrays, _core
from qcore.linear import linear as _linear
from qcore.quantized_tensor import QuantizedTensor

__all__ = ["Weight", "dequantize", "linear"]


def _readable(op: str, qweight: Any, scales: Any, qzeros: Any) -> tuple[Any, Any, Any]:
    return (
        _arrays.readable(qweight, f"{op}: qweight"),
        _arrays.readable(scales, f"{op}: scales"),
        _arrays.readable(qzeros, f"{op}: qzeros"),
    )


def dequantize(
    qweight: Any, scales: Any, qzeros: Any, *, transpose: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Compute ``W = (u - z) * s``, each product rounded once to float16: the same bits from every kernel.

    Args:
        qweight: int32 [K, N/8], any strides.
        scales: float16 [K/g, N] on the same device, any strides.
        qzeros: int32 [K/g, N/8] likewise.
        transpose: write [N, K] instead of [K, N].
        out: where to write, float16; any strides, no memory in common with the weight. It is returned.
        stream: CUDA stream to run on; the caller's library's current one by default.

    Returns:
        float16 [K, N], or [N, K] if ``transpose``, in the library and on the device of ``scales``.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; ``out`` is then
            unchanged.

    Example:
        >>> import numpy as np, qcore
        >>> qweight = np.full((2, 1), 0x76543210, np.int32)
        >>> qcore.awq.dequantize(qweight, np.full((1, 8), 0.5, np.float16), np.zeros((1, 1), np.int32))[0]
        array([0. , 2. , 0.5, 2.5, 1. , 3. , 1.5, 3.5], dtype=float16)
    """
    op = "awq.dequantize"
    arrays = _readable(op, qweight, scales, qzeros)
    if not isinstance(transpose, bool):
        raise _core.QcoreTypeError(f"{op}: transpose is {transpose!r}, expected True or False")
    backend = _arrays.backend_of(scales, f"{op}: scales")
    address = _arrays.stream_address(stream, backend, scales, f"{op}: stream")
    if out is not None:
        target = _arrays.backend_of(out, f"{op}: out").writable(out, f"{op}: out")
        _core.awq_dequantize(*arrays, transpose, target, address)
        return out
    rows, columns = _arrays.shape_of(qweight, f"{op}: qweight")[:1], _arrays.shape_of(scales, f"{op}: scales")[-1:]
    shape = (*columns, *rows) if transpose else (*rows, *columns)
    out = backend.empty(scales, shape, "float16", f"{op}: scales")
    _core.awq_dequantize(*arrays, transpose, backend.writable(out, f"{op}: out"), address)
    return backend.result(out, scales)


def linear(
    x: Any, qweight: Any, scales: Any, qzeros: Any, bias: Any = None, *, out: Any = None, stream: Any = None
) -> Any:
    """Compute ``x @ W + bias`` without W in memory; sums in float32.

    Few rows are multiplied by the weight as it lies. For more, and on a CUDA device, each call packs it for
    :func:`qcore.linear` first: a :class:`Weight` does that once.

    Args:
        x: float32, float16 or bfloat16 [..., K], any strides, on the weight's device.
        qweight, scales, qzeros: as for :func:`dequantize`.
        bias: floating-point [N], or None.
        out: where to write [..., N]; any strides, no memory in common with the other arrays. It is returned.
        stream: CUDA stream to run on; the caller's library's current one by default.

    Returns:
        [..., N] in x's library, dtype and on its device.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; ``out`` is then
            unchanged.
    """
    op = "awq.linear"
    backend = _arrays.backend_of(x, f"{op}: x")
    source = backend.readable(x, f"{op}: x")
    arrays = _readable(op, qweight, scales, qzeros)
    if bias is not None:
        bias = _arrays.readable(bias, f"{op}: bias")
    address = _arrays.stream_address(stream, backend, x, f"{op}: stream")
    if out is not None:
        target = _arrays.backend_of(out, f"{op}: out").writable(out, f"{op}: out")
        _core.awq_linear(source, *arrays, bias, target, address)
        return out
    shape = (*_arrays.shape_of(x, f"{op}: x")[:-1], *_arrays.shape_of(scales, f"{op}: scales")[-1:])
    out = backend.empty(x, shape, None, f"{op}: x")
    _core.awq_linear(source, *arrays, bias, backend.writable(out, f"{op}: out"), address)
    return backend.result(out, x)


class Weight:
    """Holds an AWQ weight packed for :func:`qcore.linear`: call it with x.

    ``scale * (u - 8) + offset`` with ``offset = scale * (8 - z)`` is exact in float32, so nothing is lost. Immutable;
    it does not refer to the arrays that it was made of.

    Args:
        qweight, scales, qzeros: as for :func:`dequantize`; finite scales. It stays on their device.
        stream: CUDA stream to pack on; the caller's library's current one by default.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.

    Example:
        >>> import numpy as np, qcore
        >>> qweight, qzeros = np.full((2, 1), 0x11111111, np.int32), np.zeros((1, 1), np.int32)
        >>> weight = qcore.awq.Weight(qweight, np.full((1, 8), 0.5, np.float16), qzeros)
        >>> weight(np.ones((1, 2), np.float16))
        array([[1., 1., 1., 1., 1., 1., 1., 1.]], dtype=float16)
    """

    __slots__ = ("packed",)

    packed: QuantizedTensor
    """The weight as :func:`qcore.linear` takes it, [N, K]."""

    def __init__(self, qweight: Any, scales: Any, qzeros: Any, *, stream: Any = None) -> None:
        op = "awq.Weight"
        arrays = _readable(op, qweight, scales, qzeros)
        backend = _arrays.backend_of(scales, f"{op}: scales")
        address = _arrays.stream_address(stream, backend, scales, f"{op}: stream")
        object.__setattr__(self, "packed", QuantizedTensor._of(_core.awq_pack(*arrays, address)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Weight is immutable: can't set {name!r}")

    def __call__(self, x: Any, bias: Any = None, *, out: Any = None, stream: Any = None) -> Any:
        """Compute ``x @ W + bias``: :func:`qcore.linear` with ``compute="float"``.

        Args:
            x: float32, float16 or bfloat16 [..., K], any strides, on the weight's device.
            bias: floating-point [N], or None.
            out: where to write [..., N].
            stream: CUDA stream to run on; the caller's library's current one by default.

        Returns:
            [..., N] in x's library and on its device.

        Raises:
            QcoreValueError, QcoreTypeError, CudaError: as :func:`qcore.linear`.
        """
        return _linear(x, self.packed, bias, compute="float", out=out, stream=stream)

    def __repr__(self) -> str:
        n, k = self.packed.shape
        return f"awq.Weight(K={k}, N={n}, group_size={self.packed.block_size}, device={self.packed.device!r})"
