"""Activations as codes, which several products may take."""

from __future__ import annotations

from typing import Any

from qcore import _arrays, _checks, _core
from qcore._options import IntegerCompute, named_arguments

INTEGER_COMPUTE = {
    "int8": _core.ComputeMode.int8,
    "int8_asym": _core.ComputeMode.int8_asym,
    "int16": _core.ComputeMode.int16,
}

CoreActivations = tuple[Any, Any, Any, int, _core.ComputeMode]
"""Activations as the core takes them: codes, scales, offsets or None, block size and mode."""


class QuantizedActivations:
    """Holds activations x [..., K] as codes: ``x[..., k] ~ scales[..., p] * codes[..., k] + offsets[..., p]``.

    ``p`` is ``k // block_size``. :func:`qcore.linear` and :func:`grouped_linear` take it instead of x, so that x is
    quantized once for several weights: for queries, keys and values, or for gate and up.
    :func:`quantize_activations`, :func:`qcore.decoder.rms_norm_quantize` and
    :func:`qcore.decoder.gated_activation_quantize` return it.

    Args:
        codes: [..., K] int8, or int16 if ``compute`` is "int16"; any strides, CPU or CUDA. The arrays are kept, not
            copied.
        scales: float32 [..., S], S = ceil(K / block_size), in the library of ``codes``.
        offsets: float32 [..., S] if ``compute`` is "int8_asym", else None.
        block_size: consecutive k that share a scale, 1 or more; None for one block per row.
        compute: "int8", "int8_asym" or "int16": what the codes are, as ``compute=`` of :func:`qcore.linear`.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """

    __slots__ = ("block_size", "codes", "compute", "offsets", "scales")

    def __init__(
        self,
        codes: Any,
        scales: Any,
        offsets: Any = None,
        *,
        block_size: int | None = None,
        compute: IntegerCompute = "int8",
    ) -> None:
        where = "QuantizedActivations"
        _checks.choice(compute, INTEGER_COMPUTE, f"{where}: compute")
        self.codes, self.scales, self.offsets = codes, scales, offsets
        self.compute = compute
        self.block_size = row_block(codes, block_size, where)
        _core.check_quantized_activations(core_arguments(self, where, "x"), where, "x")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of x."""
        return tuple(self.codes.shape)

    def __repr__(self) -> str:
        """Describe shape, mode and block size."""
        return f"QuantizedActivations(shape={self.shape}, compute={self.compute!r}, block_size={self.block_size})"


def row_block(x: Any, block_size: Any, where: str) -> int:
    """Return a block size, which is K if None is given."""
    if block_size is not None:
        return _checks.integer(block_size, f"{where}: block_size")
    shape = _arrays.shape_of(x, f"{where}: x")
    return max(int(shape[-1]), 1) if shape else 1


def scale_number(scale: Any, where: str) -> float:
    """Return a given scale as the core takes it, where 0 is none."""
    if scale is None:
        return 0.0
    number = _checks.number(scale, where)
    if not number > 0:
        raise _core.QcoreValueError(f"{where} is {scale!r}, expected a positive number")
    return number


def core_arguments(x: QuantizedActivations, where: str, argument: str) -> CoreActivations:
    """Return what the core takes for activations that an operator reads."""
    codes, scales, offsets = (
        None if array is None else _arrays.readable(array, f"{where}: {argument}.{name}")
        for name, array in (("codes", x.codes), ("scales", x.scales), ("offsets", x.offsets))
    )
    return codes, scales, offsets, x.block_size, INTEGER_COMPUTE[x.compute]


def new_activations(
    x: Any, shape: tuple[int, ...], block_size: Any, compute: Any, where: str
) -> tuple[QuantizedActivations, CoreActivations]:
    """Make activations of a shape in x's library and on its device, and what the core writes to in order to fill them.

    The arrays of the activations have still to be returned by the library's ``result``.
    """
    mode = _checks.choice(compute, INTEGER_COMPUTE, f"{where}: compute")
    backend = _arrays.backend_of(x, f"{where}: x")
    columns = shape[-1] if shape else 1
    size = max(columns, 1) if block_size is None else _checks.integer(block_size, f"{where}: block_size")
    parameters = (*shape[:-1], -(-columns // size) if size > 0 else 0)
    made = QuantizedActivations.__new__(QuantizedActivations)
    made.codes = backend.empty(x, shape, "int16" if compute == "int16" else "int8", f"{where}: x")
    made.scales = backend.empty(x, parameters, "float32", f"{where}: x")
    made.offsets = backend.empty(x, parameters, "float32", f"{where}: x") if compute == "int8_asym" else None
    made.block_size, made.compute = size, compute
    targets = (
        None if a is None else backend.writable(a, f"{where}: y") for a in (made.codes, made.scales, made.offsets)
    )
    codes, scales, offsets = targets
    return made, (codes, scales, offsets, size, mode)


def finished(made: QuantizedActivations, x: Any, where: str) -> QuantizedActivations:
    """Return activations that the core has filled, with arrays as x's library has them."""
    backend = _arrays.backend_of(x, f"{where}: x")
    made.codes, made.scales = backend.result(made.codes, x), backend.result(made.scales, x)
    if made.offsets is not None:
        made.offsets = backend.result(made.offsets, x)
    return made


@named_arguments("quantize_activations")
def quantize_activations(
    x: Any,
    block_size: int | None = None,
    compute: IntegerCompute = "int8",
    *,
    scale: float | None = None,
    out: QuantizedActivations | None = None,
    stream: Any = None,
) -> QuantizedActivations:
    """Quantize activations as :func:`qcore.linear` does with its input.

    Args:
        x: float32, float16 or bfloat16 [..., K], any strides, CPU or CUDA.
        block_size: consecutive k that share a scale, 1 or more; None for one scale per row.
        compute: "int8", "int8_asym" or "int16", as of :func:`qcore.linear`.
        scale: for "int8": the scale of every block, such as one from calibration; positive, with a finite inverse.
            Codes are then clamped to [-128, 127].
        out: where to write: activations of x's shape with this ``block_size`` and ``compute``, on x's device; any
            strides, no memory in common with x. It is returned.
        stream: CUDA stream to run on; the caller's library's current one by default.

    Returns:
        The codes and their scales, in x's library and on its device. A block with a NaN or an infinity has the scale
        NaN and codes 0.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.

    Example:
        >>> import numpy as np, qcore
        >>> x = np.array([[1, -2, 127, 0]], np.float32)
        >>> weight = qcore.quantize(np.eye(4, dtype=np.float32), bits=8, block_size=4)
        >>> codes = qcore.quantize_activations(x, 4)
        >>> codes.codes
        array([[  1,  -2, 127,   0]], dtype=int8)
        >>> bool((qcore.linear(codes, weight) == qcore.linear(x, weight)).all())
        True
    """
    where = "quantize_activations"
    number = scale_number(scale, f"{where}: scale")
    backend = _arrays.backend_of(x, f"{where}: x")
    source = backend.readable(x, f"{where}: x")
    if out is not None:
        target = _writable(out, row_block(x, block_size, where), compute, where)
    else:
        made, target = new_activations(x, tuple(_arrays.shape_of(x, f"{where}: x")), block_size, compute, where)
    address = _arrays.stream_address(stream, backend, x, f"{where}: stream")
    _core.quantize_activations(source, target, number, address)
    return finished(made, x, where) if out is None else out


def _writable(out: QuantizedActivations, block_size: int, compute: str, where: str) -> CoreActivations:
    """Return what the core writes to in order to fill a caller's activations."""
    if not isinstance(out, QuantizedActivations):
        raise _core.QcoreTypeError(f"{where}: out is a {type(out).__name__}, expected QuantizedActivations")
    for name, given, expected in (("block_size", out.block_size, block_size), ("compute", out.compute, compute)):
        if given != expected:
            raise _core.QcoreValueError(f"{where}: out.{name} is {given!r}, expected {expected!r}, which is asked for")
    codes, scales, offsets = (
        None if array is None else _arrays.backend_of(array, f"{where}: out").writable(array, f"{where}: out")
        for array in (out.codes, out.scales, out.offsets)
    )
    return codes, scales, offsets, out.block_size, INTEGER_COMPUTE[out.compute]
