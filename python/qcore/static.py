"""Static int8: codes in, codes out, with the semantics of ONNX's QLinearConv and QLinearMatMul.

A real value is ``scale * (code - zero_point)``. Activations have one scale and zero point, known beforehand; weights
have a scale per output channel. With exact int32 sums and m = x_scale * w_scale / y_scale

    y = clamp(rint(m * (sum (x - x_zero_point) * (w - w_zero_point) + bias)) + y_zero_point)

in float32, halves rounded to even. What does not depend on x is computed once, by :class:`QLinear` and
:class:`QConv2d`; :func:`qlinear` and :func:`qconv2d` make such a layer for one call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _arrays, _checks, _conv_params, _core

__all__ = ["QConv2d", "QLinear", "qconv2d", "qlinear"]

_CODES = {"int8": _core.DType.i8, "uint8": _core.DType.u8}
_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
_Format = tuple[_core.DType, float, int]
"""Holds dtype, scale and zero point."""


class _Layer(ABC):
    """Base of QLinear and QConv2d."""

    _op: str
    _handle: Any

    def __init__(self, handle: Any, x_dtype: str, y_dtype: str, x: _Format, y: _Format) -> None:
        self._handle, self.x_dtype, self.y_dtype = handle, x_dtype, y_dtype
        self._x, self._y = x, y

    @property
    def x_scale(self) -> float:
        """Scale of the input's codes, rounded to float32."""
        return float(np.float32(self._x[1]))

    @property
    def x_zero_point(self) -> int:
        """Zero point of the input's codes."""
        return self._x[2]

    @property
    def y_scale(self) -> float:
        """Scale of the output's codes, rounded to float32."""
        return float(np.float32(self._y[1]))

    @property
    def y_zero_point(self) -> int:
        """Zero point of the output's codes."""
        return self._y[2]

    @property
    def device(self) -> str:
        """'cpu' or 'cuda:<index>'."""
        return str(self._handle.device)

    def to(self, device: Any) -> Any:
        """Return the layer on ``device``; itself if it is there already.

        Args:
            device: "cpu", "cuda" or "cuda:1".

        Raises:
            CudaError: there is no such CUDA device, or this build has no CUDA backend.
        """
        cuda, index = _checks.device(device, f"{self._op}: device")
        if self.device == (f"cuda:{index}" if cuda else "cpu"):
            return self
        moved = object.__new__(type(self))
        handle = self._handle.to(cuda, index)
        _Layer.__init__(moved, handle, self.x_dtype, self.y_dtype, self._x, self._y)
        return moved

    @abstractmethod
    def _empty(self, x_backend: _arrays.ArrayBackend, x: Any, source: Any) -> Any:
        """Return an array for the result; ``source`` is x as the core takes it."""

    def _run(self, x: Any, out: Any, stream: Any) -> Any:
        x_backend = _arrays.backend_of(x, f"{self._op}: x")
        source = x_backend.readable(x, f"{self._op}: x")
        address = _arrays.stream_address(stream, x_backend, x, f"{self._op}: stream")
        if out is not None:
            target = _arrays.backend_of(out, f"{self._op}: out").writable(out, f"{self._op}: out")
            self._handle.run(source, target, address)
            return out
        out = self._empty(x_backend, x, source)
        self._handle.run(source, x_backend.writable(out, f"{self._op}: out"), address)
        return x_backend.result(out, x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(x {self.x_dtype}, y {self.y_dtype}, {self.device})"


class QLinear(_Layer):
    """Computes a static int8 linear layer, prepared once for all calls. Immutable and thread-safe.

    Args:
        x_scale, x_zero_point: of the input's codes; a positive number and an integer within ``x_dtype``.
        weight: int8 or uint8 [N, K] on the CPU.
        w_scale: one positive number, or float32 [N].
        y_scale, y_zero_point: of the output's codes, within ``y_dtype``.
        bias: int32 [N] in units of x_scale * w_scale, or None.
        clamp: (lo, hi), bounds of the output's codes; the whole range of ``y_dtype`` by default. A fused relu is
            ``(y_zero_point, 255)``.
        w_zero_point: of the weight's codes, for all channels.
        x_dtype, y_dtype: "int8" or "uint8".

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument; also for a channel whose sums could leave int32.
    """

    _op = "static.qlinear"

    def __init__(
        self,
        x_scale: float,
        x_zero_point: int,
        weight: Any,
        w_scale: Any,
        y_scale: float,
        y_zero_point: int,
        bias: Any = None,
        *,
        clamp: tuple[int, int] | None = None,
        w_zero_point: int = 0,
        x_dtype: Any = "uint8",
        y_dtype: Any = "uint8",
    ) -> None:
        x_name, x = _format(self._op, "x", x_dtype, x_scale, x_zero_point)
        y_name, y = _format(self._op, "y", y_dtype, y_scale, y_zero_point)
        zero, (lo, hi) = (
            _checks.integer(w_zero_point, f"{self._op}: w_zero_point", bits=32),
            _clamp(self._op, clamp, y_name),
        )
        parts = _parts(self._op, weight, w_scale, bias)
        super().__init__(_core.StaticLinear(*parts, x, y, zero, lo, hi), x_name, y_name, x, y)

    def _empty(self, x_backend: _arrays.ArrayBackend, x: Any, source: Any) -> Any:
        return x_backend.empty(
            x, (*_arrays.shape_of(x, f"{self._op}: x")[:-1], self._handle.rows), self.y_dtype, f"{self._op}: x"
        )

    @classmethod
    def from_float(
        cls,
        x_scale: float,
        x_zero_point: int,
        weight: Any,
        y_scale: float,
        y_zero_point: int,
        bias: Any = None,
        **options: Any,
    ) -> QLinear:
        """Make a layer from a float weight [N, K] and bias [N].

        The weight becomes int8, symmetric, with the scale max|w| / 127 of each output channel; the bias int32 in units
        of x_scale times that scale, rounded to nearest.

        Args:
            x_scale, x_zero_point, y_scale, y_zero_point: as for :class:`QLinear`.
            weight: floating-point [N, K], finite.
            bias: floating-point [N], or None.
            options: ``clamp``, ``x_dtype`` and ``y_dtype`` of QLinear.

        Raises:
            QcoreValueError, QcoreTypeError: as :class:`QLinear`; a weight that isn't finite; a bias beyond int32.
        """
        codes, scale, added = _from_float(cls._op, weight, bias, x_scale, 2)
        return cls(x_scale, x_zero_point, codes, scale, y_scale, y_zero_point, added, **options)

    def __call__(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """Compute the layer's codes from those of x.

        Args:
            x: codes of ``x_dtype`` [..., K] on the layer's device, any strides.
            out: where to write codes of ``y_dtype`` [..., N]; any strides, no memory in common with x. It is returned.
            stream: CUDA stream to run on; the caller's library's current one by default.

        Returns:
            Codes of ``y_dtype`` [..., N] in x's library.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
            CudaError: a CUDA call failed.
        """
        return self._run(x, out, stream)


class QConv2d(_Layer):
    """Computes a static int8 convolution, prepared once for all calls. Immutable and thread-safe.

    Args:
        x_scale, x_zero_point: of the input's codes; a positive number and an integer within ``x_dtype``.
        weight: int8 or uint8 [Co, Ci / groups, Kh, Kw] on the CPU.
        w_scale: one positive number, or float32 [Co].
        y_scale, y_zero_point: of the output's codes, within ``y_dtype``.
        bias: int32 [Co] in units of x_scale * w_scale, or None.
        stride, dilation: integers or (H, W).
        padding: an integer, (H, W) or (top, left, bottom, right); padded elements are the real value 0.
        groups: of channels.
        clamp, w_zero_point, x_dtype, y_dtype: as for :class:`QLinear`.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument; also for a channel whose sums could leave int32.
    """

    _op = "static.qconv2d"

    def __init__(
        self,
        x_scale: float,
        x_zero_point: int,
        weight: Any,
        w_scale: Any,
        y_scale: float,
        y_zero_point: int,
        bias: Any = None,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        clamp: tuple[int, int] | None = None,
        w_zero_point: int = 0,
        x_dtype: Any = "uint8",
        y_dtype: Any = "uint8",
    ) -> None:
        x_name, x = _format(self._op, "x", x_dtype, x_scale, x_zero_point)
        y_name, y = _format(self._op, "y", y_dtype, y_scale, y_zero_point)
        zero, (lo, hi) = (
            _checks.integer(w_zero_point, f"{self._op}: w_zero_point", bits=32),
            _clamp(self._op, clamp, y_name),
        )
        kernel = tuple(getattr(weight, "shape", ()))[2:]
        params = _conv_params.make(stride, padding, dilation, groups, self._op, kernel if len(kernel) == 2 else (1, 1))
        parts = _parts(self._op, weight, w_scale, bias)
        super().__init__(_core.StaticConv2d(*parts, params, x, y, zero, lo, hi), x_name, y_name, x, y)

    def _empty(self, x_backend: _arrays.ArrayBackend, x: Any, source: Any) -> Any:
        return x_backend.empty_image(x, self._handle.shape(source), self.y_dtype, f"{self._op}: x")

    @classmethod
    def from_float(
        cls,
        x_scale: float,
        x_zero_point: int,
        weight: Any,
        y_scale: float,
        y_zero_point: int,
        bias: Any = None,
        **options: Any,
    ) -> QConv2d:
        """Make a layer from a float weight and bias, as :meth:`QLinear.from_float`.

        Args:
            x_scale, x_zero_point, y_scale, y_zero_point: as for :class:`QLinear`.
            weight: floating-point [Co, Ci / groups, Kh, Kw], finite.
            bias: floating-point [Co], or None.
            options: ``stride``, ``padding``, ``dilation``, ``groups``, ``clamp``, ``x_dtype`` and ``y_dtype`` of
                QConv2d.

        Raises:
            QcoreValueError, QcoreTypeError: as :class:`QConv2d`; a weight that isn't finite; a bias beyond int32.
        """
        codes, scale, added = _from_float(cls._op, weight, bias, x_scale, 4)
        return cls(x_scale, x_zero_point, codes, scale, y_scale, y_zero_point, added, **options)

    def __call__(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """Compute the layer's codes from those of x.

        Args:
            x: codes of ``x_dtype`` [N, Ci, H, W] on the layer's device, any strides.
            out: where to write codes of ``y_dtype`` [N, Co, Ho, Wo]; any strides, no memory in common with x. It is
                returned.
            stream: CUDA stream to run on; the caller's library's current one by default.

        Returns:
            Codes of ``y_dtype`` [N, Co, Ho, Wo] in x's library, channels_last if x is.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
            CudaError: a CUDA call failed.
        """
        return self._run(x, out, stream)


def qlinear(
    x: Any,
    x_scale: float,
    x_zero_point: int,
    weight: Any,
    w_scale: Any,
    y_scale: float,
    y_zero_point: int,
    bias: Any = None,
    *,
    clamp: tuple[int, int] | None = None,
    w_zero_point: int = 0,
    y_dtype: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Call a :class:`QLinear` once. To call a layer more often make one: here the weight is packed every time.

    Args:
        x: int8 or uint8 [..., K], any strides.
        weight: int8 or uint8 [N, K] on the CPU.
        x_scale, x_zero_point, w_scale, y_scale, y_zero_point, bias, clamp, w_zero_point: as for :class:`QLinear`.
        y_dtype: "int8" or "uint8"; x's by default.
        out, stream: as for a call of a QLinear.

    Returns:
        Codes of ``y_dtype`` [..., N] in x's library and on its device.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.

    Example:
        >>> import numpy as np, qcore
        >>> x, weight = np.array([[10, 20]], np.uint8), np.array([[1, 2], [-3, 4]], np.int8)
        >>> qcore.static.qlinear(x, 0.1, 5, weight, 0.5, 0.25, 3)
        array([[10, 12]], dtype=uint8)
    """
    x_dtype = _dtype_of(QLinear._op, x)
    layer = QLinear(
        x_scale, x_zero_point, weight, w_scale, y_scale, y_zero_point, bias,
        clamp=clamp, w_zero_point=w_zero_point, x_dtype=x_dtype, y_dtype=x_dtype if y_dtype is None else y_dtype,
    )  # fmt: skip
    return layer.to(_device_of(x))(x, out=out, stream=stream)


def qconv2d(
    x: Any,
    x_scale: float,
    x_zero_point: int,
    weight: Any,
    w_scale: Any,
    y_scale: float,
    y_zero_point: int,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    clamp: tuple[int, int] | None = None,
    w_zero_point: int = 0,
    y_dtype: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Call a :class:`QConv2d` once. To call a layer more often make one: here the weight is packed every time.

    Args:
        x: int8 or uint8 [N, Ci, H, W], any strides.
        weight: int8 or uint8 [Co, Ci / groups, Kh, Kw] on the CPU.
        x_scale, x_zero_point, w_scale, y_scale, y_zero_point, bias: as for :class:`QConv2d`.
        stride, padding, dilation, groups, clamp, w_zero_point: as for :class:`QConv2d`.
        y_dtype: "int8" or "uint8"; x's by default.
        out, stream: as for a call of a QConv2d.

    Returns:
        Codes of ``y_dtype`` [N, Co, Ho, Wo] in x's library and on its device, channels_last if x is.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    x_dtype = _dtype_of(QConv2d._op, x)
    layer = QConv2d(
        x_scale, x_zero_point, weight, w_scale, y_scale, y_zero_point, bias,
        stride=stride, padding=padding, dilation=dilation, groups=groups,
        clamp=clamp, w_zero_point=w_zero_point, x_dtype=x_dtype, y_dtype=x_dtype if y_dtype is None else y_dtype,
    )  # fmt: skip
    return layer.to(_device_of(x))(x, out=out, stream=stream)


def _format(op: str, argument: str, dtype: Any, scale: Any, zero_point: Any) -> tuple[str, _Format]:
    name = _arrays.dtype_name(dtype)
    if name not in _CODES:
        raise _core.QcoreTypeError(f"{op}: {argument}_dtype is {dtype!r}, expected int8 or uint8")
    number = _checks.number(scale, f"{op}: {argument}_scale")
    zero = _checks.integer(zero_point, f"{op}: {argument}_zero_point", bits=32)
    return name, (_CODES[name], number, zero)


def _clamp(op: str, clamp: Any, y_dtype: str) -> tuple[int, int]:
    if clamp is None:
        return _RANGES[y_dtype]
    try:
        lo, hi = clamp
    except (TypeError, ValueError):
        raise _core.QcoreValueError(f"{op}: clamp is {clamp!r}, expected None or a pair (lo, hi) of codes") from None
    return tuple(_checks.integer(bound, f"{op}: clamp", bits=32) for bound in (lo, hi))  # type: ignore[return-value]


def _parts(op: str, weight: Any, w_scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    if not hasattr(w_scale, "shape"):
        w_scale = [w_scale] if np.isscalar(w_scale) else w_scale
        try:
            w_scale = np.asarray(w_scale, np.float32)
        except (TypeError, ValueError):
            raise _core.QcoreTypeError(f"{op}: w_scale is {w_scale!r}, expected a number or float32 [N]") from None
    elif w_scale.shape == ():
        w_scale = np.full(1, float(w_scale), np.float32)
    added = None if bias is None else _arrays.readable(bias, f"{op}: bias")
    return _arrays.readable(weight, f"{op}: weight"), _arrays.readable(w_scale, f"{op}: w_scale"), added


def _from_float(
    op: str, weight: Any, bias: Any, x_scale: Any, rank: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.int32] | None]:
    values = np.asarray(weight, np.float32)
    if values.ndim != rank:
        raise _core.QcoreValueError(f"{op}: weight has shape {list(values.shape)}, expected {rank} axes")
    if not np.isfinite(values).all():
        raise _core.QcoreValueError(f"{op}: weight holds a NaN or an infinity, expected finite numbers")
    rows = values.reshape(len(values), -1)
    largest = np.abs(rows).max(axis=1, initial=0)
    smallest = np.finfo(np.float32).tiny
    scale = np.where(largest / np.float32(127) > smallest, largest / np.float32(127), np.float32(1))
    codes = np.rint(rows / scale[:, None]).astype(np.int8).reshape(values.shape)
    if bias is None:
        return codes, scale, None
    unit = np.float64(_checks.number(x_scale, f"{op}: x_scale")) * scale
    added = np.asarray(bias, np.float64)
    if added.shape != unit.shape:
        raise _core.QcoreValueError(f"{op}: bias has shape {list(added.shape)}, expected [{len(unit)}]")
    steps = np.rint(added / unit)
    if not (np.abs(steps) < 2**31).all():
        raise _core.QcoreValueError(f"{op}: bias / (x_scale * w_scale) reaches {np.abs(steps).max():g}, expected int32")
    return codes, scale, steps.astype(np.int32)


def _dtype_of(op: str, x: Any) -> str:
    _arrays.backend_of(x, f"{op}: x")
    name = _arrays.dtype_name(x.dtype)
    if name not in _CODES:
        raise _core.QcoreTypeError(f"{op}: x has dtype {name}, expected int8 or uint8")
    return name


def _device_of(x: Any) -> str:
    """Return 'cpu' or 'cuda:<index>'."""
    if isinstance(x, np.ndarray):
        return "cpu"
    kind, index = x.__dlpack_device__()
    return f"cuda:{index}" if kind == 2 else "cpu"
