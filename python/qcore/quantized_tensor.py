"""Per-block quantized weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _arrays, _checks, _core
from qcore._options import Method, Scheme

_SCHEMES = {"symmetric": True, "asymmetric": False}
_METHODS = {name: getattr(_core.Method, name) for name in ("rtn", "mse", "awq")}
_SCALE_DTYPES = {"float32": False, "float16": True}


class QuantizedTensor:
    """An immutable weight in blocks of ``block_size`` along K that share a scale and an offset.

    ``w[n, k] ~ scale[n, p] * code[n, k] + offset[n, p]`` with ``p = k // block_size``. Its shape is [N, K], or
    [Co, Ci, Kh, Kw] blocked along Ci with parameters [Co, P] shared by all taps. Codes are in [-8, 7] (4 bits) or
    [-128, 127] (8 bits). Made by :func:`quantize` and :meth:`from_parts`. Compares by value; pickles.
    """

    __slots__ = ("_handle",)
    __hash__ = None  # type: ignore[assignment]

    _handle: _core.QuantizedTensor

    def __init__(self) -> None:
        raise _core.QcoreTypeError(
            "QuantizedTensor() makes no tensor: use qcore.quantize(weight, ...) or QuantizedTensor.from_parts(...)"
        )

    @classmethod
    def _of(cls, handle: _core.QuantizedTensor) -> QuantizedTensor:
        self = object.__new__(cls)
        object.__setattr__(self, "_handle", handle)
        return self

    @classmethod
    def from_parts(
        cls, codes: Any, scales: Any, offsets: Any = None, *, bits: int, block_size: int, shape: Any = None
    ) -> QuantizedTensor:
        """Make a weight from its parts, without loss.

        Args:
            codes: int8 [N, K] or [Co, Ci, Kh, Kw], within the range of ``bits``; or for 4 bits uint8
                [N, ceil(K / 2)], two codes in a byte as :meth:`nibbles` gives them, together with ``shape``.
            scales: float32, float16 or bfloat16 [N, P], P = ceil(K / block_size); finite.
            offsets: likewise [N, P], finite; None for a symmetric weight.
            bits: 4 or 8.
            block_size: elements along K (Ci) that share a scale.
            shape: of the weight, with uint8 codes only.

        Raises:
            QcoreValueError, QcoreTypeError: a part has another shape, dtype or range.
        """
        codes = _arrays.readable(codes, "from_parts: codes")
        scales = _arrays.readable(scales, "from_parts: scales")
        offsets = None if offsets is None else _arrays.readable(offsets, "from_parts: offsets")
        size = _checks.integer(block_size, "from_parts: block_size")
        width = _checks.integer(bits, "from_parts: bits", bits=32)
        if shape is None:
            return cls._of(_core.from_parts(codes, scales, offsets, width, size))
        if width != 4:
            raise _core.QcoreValueError(
                f"from_parts: shape is given and bits is {bits}, expected shape with codes of 4 bits in pairs only"
            )
        extents = [_checks.integer(extent, "from_parts: shape") for extent in shape]
        return cls._of(_core.from_nibbles(codes, extents, scales, offsets, size))

    @classmethod
    def from_storage(
        cls,
        storage: Any,
        shape: Any,
        *,
        bits: int,
        block_size: int,
        scale_dtype: Any = "float32",
        offset_dtype: Any = None,
    ) -> QuantizedTensor:
        """View memory that has the bytes of :meth:`storage`, without a copy.

        Args:
            storage: uint8 [bytes], contiguous, at an address that is a multiple of 64. The weight keeps it alive; it
                must not be written to any more.
            shape: [N, K] or [Co, Ci, Kh, Kw].
            bits: 4 or 8.
            block_size: elements along K (Ci) that share a scale.
            scale_dtype: "float32" or "float16"; on a CUDA device "float32".
            offset_dtype: likewise; None for a symmetric weight.

        Raises:
            QcoreValueError, QcoreTypeError: an argument is impossible, or ``storage`` has another size.
        """
        where = "from_storage"
        return cls._of(
            _core.from_storage(
                _arrays.readable(storage, f"{where}: storage"),
                [_checks.integer(extent, f"{where}: shape") for extent in shape],
                _checks.integer(bits, f"{where}: bits", bits=32),
                _checks.integer(block_size, f"{where}: block_size"),
                offset_dtype is None,
                _checks.choice(_arrays.dtype_name(scale_dtype), _SCALE_DTYPES, f"{where}: scale_dtype"),
                offset_dtype is not None
                and _checks.choice(_arrays.dtype_name(offset_dtype), _SCALE_DTYPES, f"{where}: offset_dtype"),
                True,
            )
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"QuantizedTensor is immutable: can't set {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K] or [Co, Ci, Kh, Kw]."""
        return self._handle.shape

    @property
    def bits(self) -> int:
        """4 or 8."""
        return self._handle.bits

    @property
    def block_size(self) -> int:
        """Elements along K that share a scale; the last block of a row may be shorter."""
        return self._handle.block_size

    @property
    def scheme(self) -> str:
        """'symmetric' (no offsets) or 'asymmetric'."""
        return "symmetric" if self._handle.symmetric else "asymmetric"

    @property
    def device(self) -> str:
        """'cpu' or 'cuda:<index>'."""
        return self._handle.device

    @property
    def scale_dtype(self) -> str:
        """Dtype of the scales as stored: 'float16' wherever every one of them is exact in it, else 'float32'."""
        return self._handle.scale_dtype

    @property
    def offset_dtype(self) -> str | None:
        """The dtype of the offsets as stored, likewise; None for a symmetric weight."""
        return None if self._handle.symmetric else self._handle.offset_dtype

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offsets as stored, padding included."""
        return self._handle.nbytes

    @property
    def bits_per_weight(self) -> float:
        """8 * nbytes / number of weights."""
        return self._handle.bits_per_weight

    def codes(self) -> npt.NDArray[np.int8]:
        """Return the codes, int8 of the weight's shape."""
        out = _arrays.empty_numpy(self.shape, np.dtype(np.int8))
        self._handle.codes(out)
        return out

    def nibbles(self) -> npt.NDArray[np.uint8]:
        """Return the codes of 4 bits in half a byte each: uint8 [N, ceil(K / 2)], K = Ci * Kh * Kw of a convolution.

        Element 2j of a row is the low half of byte j, 2j + 1 the high half, each plus 8; an odd row ends with a zero
        half.

        Raises:
            QcoreValueError: the weight has 8 bits, or is on another device than the CPU.
        """
        out = _arrays.empty_numpy((self.shape[0], -(-math.prod(self.shape[1:]) // 2)), np.dtype(np.uint8))
        self._handle.nibbles(out)
        return out

    def scales(self) -> npt.NDArray[np.float32]:
        """Return the scales, float32 [N, P]."""
        out = self._parameters()
        self._handle.scales(out)
        return out

    def offsets(self) -> npt.NDArray[np.float32]:
        """Return the offsets, float32 [N, P]; zeros for a symmetric weight."""
        out = self._parameters()
        self._handle.offsets(out)
        return out

    def _parameters(self) -> npt.NDArray[np.float32]:
        return _arrays.empty_numpy((self.shape[0], self._handle.blocks), np.dtype(np.float32))

    def dequantize(self, dtype: Any = "float32") -> npt.NDArray[Any]:
        """Compute ``scale * code + offset``, rounded once to float32, then to ``dtype``.

        Args:
            dtype: float32, float16 or bfloat16, which needs ml-dtypes: a name or any library's dtype.

        Returns:
            An array of NumPy of the weight's shape, in host memory.

        Raises:
            QcoreValueError: another dtype.
        """
        name = _arrays.floating_dtype(dtype, "dequantize: dtype") or "float32"
        out = _arrays.empty_numpy(self.shape, _arrays.numpy_dtype(name))
        self._handle.dequantize(_arrays.readable(out, "dequantize: out"))
        return out

    def storage(self) -> Any:
        """Return all that the weight has in memory, without a copy.

        Returns:
            uint8 [bytes]: codes, scales and offsets in the layout that kernels read, each part at a multiple of 64
            bytes. On the CPU a read-only array of NumPy, on a CUDA device an object with ``__dlpack__``. It is what
            :meth:`from_storage` takes; files have codes, scales and offsets instead (docs/checkpoints.md).
        """
        memory = self._handle.storage()
        if self._handle.device != "cpu":
            return memory
        array = np.from_dlpack(memory)
        array.flags.writeable = False
        return array

    def slice_rows(self, start: int, stop: int) -> QuantizedTensor:
        """Return some rows as a weight of their own, on the same device.

        Args:
            start: the first row of N.
            stop: the exclusive end.

        Raises:
            QcoreValueError: not 0 <= start <= stop <= N.
        """
        begin, end = _checks.integer(start, "slice_rows: start"), _checks.integer(stop, "slice_rows: stop")
        return QuantizedTensor._of(self._handle.slice_rows(begin, end))

    def to(self, device: Any) -> QuantizedTensor:
        """Return the weight on ``device``; itself if it is there already.

        Args:
            device: "cpu", "cuda" (the current one) or "cuda:1", or torch's device.

        Raises:
            CudaError: there is no such CUDA device, or this build has no CUDA backend.
        """
        cuda, index = _checks.device(device, "to: device")
        if self._handle.device == (f"cuda:{index}" if cuda else "cpu"):
            return self
        return QuantizedTensor._of(self._handle.to(cuda, index))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantizedTensor):
            return NotImplemented
        return self._handle.equal(other._handle)

    def __reduce__(self) -> tuple[Any, ...]:
        here = self.to("cpu")
        offsets = None if self.scheme == "symmetric" else here.offsets()
        parts = (here.codes(), here.scales(), offsets, self.bits, self.block_size, self._handle.device)
        return _unpickle, parts

    def __repr__(self) -> str:
        return (
            f"QuantizedTensor(shape={list(self.shape)}, bits={self.bits}, block_size={self.block_size}, "
            f"scheme={self.scheme!r}, device={self._handle.device!r}, {self.bits_per_weight:.3g} bits per weight)"
        )


def _unpickle(codes: Any, scales: Any, offsets: Any, bits: int, block_size: int, device: str) -> QuantizedTensor:
    return QuantizedTensor.from_parts(codes, scales, offsets, bits=bits, block_size=block_size).to(device)


def concatenate(weights: Any) -> QuantizedTensor:
    """Stack the rows of several weights: one product then gives the outputs of all of them.

    Args:
        weights: QuantizedTensors [N_i, K] (or [Co_i, Ci, Kh, Kw]) of the same bits, block_size and scheme.

    Returns:
        The QuantizedTensor [sum of N_i, K] on the device of the first.

    Raises:
        QcoreValueError, QcoreTypeError: there is none, one is no QuantizedTensor, or they differ in more than N.
    """
    handles = []
    for number, weight in enumerate(weights):
        if not isinstance(weight, QuantizedTensor):
            raise _core.QcoreTypeError(
                f"concatenate: weights[{number}] is a {type(weight).__name__}, expected a QuantizedTensor"
            )
        handles.append(weight._handle)
    return QuantizedTensor._of(_core.concatenate(handles))


def quantize(
    weight: Any,
    *,
    bits: int = 4,
    block_size: int = 64,
    scheme: Scheme = "symmetric",
    method: Method = "rtn",
    samples: Any = None,
    scale_dtype: Any = "float32",
) -> QuantizedTensor:
    """Quantize a weight per block.

    Args:
        weight: float32, float16 or bfloat16 [N, K] or [Co, Ci, Kh, Kw] on the CPU, any strides, finite.
        bits: 4 or 8.
        block_size: g, elements along K (Ci) that share a scale; any positive integer, K need not be a multiple.
        scheme: "symmetric" (offset 0, codes within +-(2^(bits-1) - 1)) or "asymmetric" (the block's minimum and
            maximum are exact up to rounding, all 2^bits codes are used).
        method: "rtn" rounds to nearest; "mse" searches each block's clipping for the smallest squared error, never
            above rtn's. In a symmetric weight "mse" also uses the lowest code, -2^(bits-1), with a negative scale where
            a block's largest value is positive. "awq" searches as "mse" does, but counts an error of k by the mean of
            x_k^2 over ``samples``: the clipping search of AWQ (Lin et al., 2023). Its scaling of input channels needs
            the layer before: :func:`qcore.awq_scales`.
        samples: inputs of the layer, numbers [M, K] ([M, Ci] for a convolution), for "awq" only.
        scale_dtype: "float32", or "float16" to round scales and offsets to fp16 before the codes are chosen: half the
            bytes for them (4.25 bits per weight at bits=4, block_size=64) for a slightly larger error. Blocks whose
            scale is below 6e-8, fp16's smallest number, become zeros.

    Raises:
        QcoreValueError: a NaN or Inf (its index is named), a scale or an offset that ``scale_dtype`` cannot hold, or
            an impossible shape or option.
        QcoreTypeError: another dtype, or no array.

    Example:
        >>> import numpy as np, qcore
        >>> weight = np.random.default_rng(0).standard_normal((256, 512), dtype=np.float32)
        >>> qcore.quantize(weight, bits=4, block_size=64)
        QuantizedTensor(shape=[256, 512], bits=4, block_size=64, scheme='symmetric', device='cpu', 4.5 bits per weight)
    """
    _checks.choice(method, _METHODS, "quantize: method")
    if (method == "awq") != (samples is not None):
        raise _core.QcoreValueError(
            f"quantize: samples is {'missing' if samples is None else 'given'}, expected inputs [M, K] with "
            "method='awq' and None with any other"
        )
    features = weight.shape[1] if len(getattr(weight, "shape", ())) > 1 else 0
    importance = None if samples is None else mean_squares(samples, features, "quantize: samples")
    return quantize_weighted(
        weight,
        importance,
        bits=bits,
        block_size=block_size,
        scheme=scheme,
        method=method,
        scale_dtype=scale_dtype,
    )


def quantize_weighted(
    weight: Any,
    importance: npt.NDArray[np.float32] | None,
    *,
    bits: int,
    block_size: int,
    scheme: Scheme,
    method: Method,
    scale_dtype: Any,
) -> QuantizedTensor:
    """Quantize as :func:`quantize`, with the importance [K] of input channels as :func:`mean_squares` returns it.

    Pieces of a weight's rows then share it.
    """
    return QuantizedTensor._of(
        _core.quantize(
            _arrays.readable(weight, "quantize: weight"),
            _checks.integer(bits, "quantize: bits", bits=32),
            _checks.integer(block_size, "quantize: block_size"),
            _checks.choice(scheme, _SCHEMES, "quantize: scheme"),
            _checks.choice(method, _METHODS, "quantize: method"),
            _checks.choice(_arrays.dtype_name(scale_dtype), _SCALE_DTYPES, "quantize: scale_dtype"),
            importance,
        )
    )


def mean_squares(samples: Any, features: int, where: str) -> npt.NDArray[np.float32]:
    """Return the mean square of each input channel, at least a ten-thousandth of their mean.

    A channel that no sample has used is not free to be wrong.
    """
    x = float_samples(samples, features, where)
    squares = np.square(x).mean(axis=0)
    floor = 1e-4 * squares.mean()
    result: npt.NDArray[np.float32] = np.maximum(squares, floor if floor > 0 else 1.0).astype(np.float32)
    return result


def float_samples(samples: Any, features: int, where: str) -> npt.NDArray[np.float64]:
    """Return [M, K] in float64, checked."""
    if hasattr(samples, "detach"):
        samples = samples.detach().cpu().double().numpy()
    x = np.asarray(samples, np.float64)
    if x.ndim != 2 or x.shape[1] != features or x.shape[0] == 0:
        raise _core.QcoreValueError(f"{where} has shape {list(x.shape)}, expected [M, K] with K = {features}")
    if not np.isfinite(x).all():
        raise _core.QcoreValueError(f"{where} holds a NaN or an infinity, expected finite values")
    return x
