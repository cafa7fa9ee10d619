"""Per-block quantized weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _arrays, _checks, _core
from qcore._display import html
from qcore._options import BITS, BLOCK_SIZE, METHOD, SCALE_DTYPE, SCHEME, Method, Scheme, named_arguments, option_names
from qcore.methods import gptq
from qcore.methods.samples import mean_squares
from qcore.weight_encoding import WeightEncoding

_SCHEMES = {"symmetric": True, "asymmetric": False}
_METHODS = {name: getattr(_core.Method, name) for name in ("rtn", "mse", "awq")} | {"gptq": _core.Method.awq}
_SAMPLED = {"rtn": "", "mse": "optional", "awq": "needed", "gptq": "needed"}  # samples of a method
_SCALE_DTYPES = {"float32": False, "float16": True}


class QuantizedTensor:
    """Holds an immutable weight in blocks of ``block_size`` along K that share a scale and an offset.

    ``w[n, k] ~ scale[n, p] * code[n, k] + offset[n, p]`` with ``p = k // block_size``. Its shape is [N, K], or
    [Co, Ci, Kh, Kw] blocked along Ci with parameters [Co, P] shared by all taps. Codes are in [-8, 7] (4 bits) or
    [-128, 127] (8 bits). Made by :func:`quantize` and :meth:`from_parts`. Compares by value; pickles.

    An encoded weight (:attr:`encoding`), made by :meth:`from_encoded`, keeps codes and parameters of other widths.
    """

    __slots__ = ("_handle",)
    __hash__ = None  # type: ignore[assignment]

    _handle: _core.QuantizedTensor

    def __init__(self, *arguments: Any, **options: Any) -> None:
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
    def from_encoded(
        cls,
        codes: Any,
        scales: Any,
        offsets: Any = None,
        *,
        encoding: WeightEncoding,
        block_size: int,
        super_scales: Any = None,
        super_offsets: Any = None,
    ) -> QuantizedTensor:
        """Make an encoded weight from its parts, without loss; it takes the bytes that the encoding says.

        Args:
            codes: u, uint8 [N, K].
            scales: [N, P], P = ceil(K / block_size), of the encoding's type; uint8 for integers and floats of 8 bits.
            offsets: likewise; None if the encoding has none.
            encoding: what the parts mean.
            block_size: elements along K that share a scale.
            super_scales: float16 [N, ceil(P / super_block)], with integer scales only.
            super_offsets: likewise, with integer offsets only.

        Raises:
            QcoreValueError, QcoreTypeError: the encoding is impossible, or a part has another shape, dtype or range.
        """
        if not isinstance(encoding, WeightEncoding):
            raise _core.QcoreTypeError(
                f"from_encoded: encoding is a {type(encoding).__name__}, expected a qcore.WeightEncoding"
            )

        def optional(part: Any, name: str) -> Any:
            return None if part is None else _arrays.readable(part, f"from_encoded: {name}")

        return cls._of(
            _core.from_encoded(
                encoding._native(),
                _arrays.readable(codes, "from_encoded: codes"),
                _arrays.readable(scales, "from_encoded: scales"),
                optional(offsets, "offsets"),
                optional(super_scales, "super_scales"),
                optional(super_offsets, "super_offsets"),
                _checks.integer(block_size, "from_encoded: block_size"),
            )
        )

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
        encoding: WeightEncoding | None = None,
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
            encoding: of an encoded weight; it replaces bits and both dtypes.

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
                _arrays.dtype_choice(scale_dtype, _SCALE_DTYPES, f"{where}: scale_dtype"),
                offset_dtype is not None
                and _arrays.dtype_choice(offset_dtype, _SCALE_DTYPES, f"{where}: offset_dtype"),
                True,
                None if encoding is None else encoding._native(),
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
        """4 or 8; of an encoded weight 2, 3, 4, 5, 6 or 8."""
        return self._handle.bits

    @property
    def encoding(self) -> WeightEncoding | None:
        """The description of how an encoded weight is stored; None for a plain weight."""
        native = self._handle.encoding
        return None if native is None else WeightEncoding._of(native)

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
        """Dtype of the scales as stored: 'float16' wherever every one of them is exact in it, else 'float32'.

        An encoded weight has that of its encoding.
        """
        encoding = self.encoding
        return self._handle.scale_dtype if encoding is None else encoding.scales

    @property
    def offset_dtype(self) -> str | None:
        """The dtype of the offsets as stored, likewise; None for a symmetric weight."""
        encoding = self.encoding
        if encoding is not None:
            return encoding.offsets
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

    def dequantize(self, dtype: Any = None, *, out: Any = None) -> Any:
        """Compute ``scale * code + offset``, rounded once to float32, then to ``dtype``.

        Args:
            dtype: float32 (the default), float16 or bfloat16, which needs ml-dtypes; none together with ``out``.
            out: where to write, such an array in host memory; any strides. Memory that was used before is faster.

        Returns:
            ``out``, or an array of NumPy of the weight's shape, in host memory.

        Raises:
            QcoreValueError, QcoreTypeError: another dtype or shape, or the weight is not on the CPU.
        """
        name = _arrays.floating_dtype(dtype, "dequantize: dtype")
        if out is None:
            out = _arrays.empty_numpy(self.shape, _arrays.numpy_dtype(name or "float32"))
        elif name is not None:
            raise _core.QcoreValueError("dequantize: out and dtype are both given, expected at most one of them")
        self._handle.dequantize(_arrays.backend_of(out, "dequantize: out").writable(out, "dequantize: out"))
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return :meth:`dequantize`, which ``numpy.asarray`` asks for; it always makes a new array."""
        if copy is False:
            raise _core.QcoreValueError(
                "QuantizedTensor.__array__: copy is False, expected None or True: the values are computed from codes"
            )
        return np.asarray(self.dequantize(), dtype)

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

    def encoded_parts(self) -> dict[str, Any]:
        """Return the parts of an encoded weight by their names in :meth:`from_encoded`; ``None`` for what it lacks.

        Returns:
            ``codes``, uint8 [N, K]; ``scales`` and ``offsets`` [N, P]; ``super_scales`` and ``super_offsets``, float16
            [N, ceil(P / super_block)]. Parameters have the type of :attr:`encoding`, uint8 for integers and floats of 8
            bits. bfloat16 needs ml-dtypes.

        Raises:
            QcoreValueError: the weight is plain, or on another device than the CPU.
        """
        return self._encoded_parts(lambda shape, dtype: _arrays.empty_numpy(shape, _arrays.numpy_dtype(dtype)))

    def _encoded_parts(self, empty: Callable[[tuple[int, ...], str], Any]) -> dict[str, Any]:
        """Return the parts of an encoded weight in arrays that ``empty(shape, dtype)`` makes."""
        encoding = self.encoding
        if encoding is None:
            raise _core.QcoreValueError(
                f"encoded_parts: the weight has plain codes of {self.bits} bits, expected an encoded weight"
            )
        parts = {
            name: None if about is None else empty(*about)
            for name, about in encoding.arrays(self.shape, self.block_size).items()
        }
        self._handle.encoded_parts(
            **{
                name: None if part is None else _arrays.readable(part, f"encoded_parts: {name}")
                for name, part in parts.items()
            }
        )
        return parts

    def plain(self) -> QuantizedTensor:
        """Return the same values with codes of 4 bits where all of them fit, else of 8.

        Parameters become float16 where that is exact, else float32. Unsigned codes of 4 bits become signed ones if
        float32 holds the offsets that this takes for all blocks. Zero points with float32 scales become codes of 8 bits
        without an offset, where those fit; in other blocks, of 8 bits only, the offset is rounded once. A plain
        weight is returned as it is.
        """
        return self if self._handle.encoding is None else QuantizedTensor._of(self._handle.plain())

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
        """Return the weight on ``device``; itself if it is there already. An encoded weight keeps its bytes.

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
        # Only bytes and numbers: torch.load(weights_only=True) refuses arrays of NumPy.
        here, where = self.to("cpu"), (self.shape, self.bits, self.block_size, self._handle.device)
        if self.encoding is not None:
            return unpickle, ((here.storage().tobytes(),), *where, self.encoding.to_dict())
        offsets = [] if self.scheme == "symmetric" else [here.offsets()]
        parts: list[npt.NDArray[Any]] = [here.codes(), here.scales(), *offsets]
        return unpickle, (tuple(part.tobytes() for part in parts), *where)

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        return html.weight(self)

    def __repr__(self) -> str:
        return (
            f"QuantizedTensor(shape={list(self.shape)}, bits={self.bits}, block_size={self.block_size}, "
            f"scheme={self.scheme!r}, device={self._handle.device!r}, {self.bits_per_weight:.3g} bits per weight)"
        )


def unpickle(
    parts: tuple[bytes, ...],
    shape: tuple[int, ...],
    bits: int,
    block_size: int,
    device: str,
    encoding: dict[str, Any] | None = None,
) -> QuantizedTensor:
    """Return a pickled weight.

    Args:
        parts: the bytes of codes, scales and perhaps offsets; of an encoded weight those of its storage.
        shape, bits, block_size, device: of the weight.
        encoding: what :meth:`WeightEncoding.to_dict` returned, of an encoded weight.
    """
    if encoding is not None:
        memory = np.frombuffer(parts[0], np.uint8)
        return _unpickle_encoded(memory, tuple(shape), block_size, WeightEncoding.from_dict(encoding), device)
    codes = np.frombuffer(parts[0], np.int8).reshape(shape)
    numbers = [np.frombuffer(part, np.float32).reshape(shape[0], -(-shape[1] // block_size)) for part in parts[1:]]
    return _unpickle(codes, numbers[0], numbers[1] if len(numbers) > 1 else None, bits, block_size, device)


# The two functions below are in the pickles of version 0.1.
def _unpickle(codes: Any, scales: Any, offsets: Any, bits: int, block_size: int, device: str) -> QuantizedTensor:
    return QuantizedTensor.from_parts(codes, scales, offsets, bits=bits, block_size=block_size).to(device)


def _unpickle_encoded(
    storage: npt.NDArray[np.uint8],
    shape: tuple[int, ...],
    block_size: int,
    encoding: WeightEncoding,
    device: str = "cpu",
) -> QuantizedTensor:
    aligned = _arrays.empty_numpy(storage.shape, np.dtype(np.uint8))
    aligned[:] = storage
    weight = QuantizedTensor.from_storage(aligned, shape, bits=encoding.bits, block_size=block_size, encoding=encoding)
    return weight.to(device)


@named_arguments("concatenate", "concatenate([weight, weight])")
def concatenate(weights: Any) -> QuantizedTensor:
    """Stack the rows of several weights: one product then gives the outputs of all of them.

    Args:
        weights: QuantizedTensors [N_i, K] (or [Co_i, Ci, Kh, Kw]) of the same bits, block_size and scheme.

    Returns:
        The QuantizedTensor [sum of N_i, K] on the device of the first.

    Raises:
        QcoreValueError, QcoreTypeError: there is none, one is no QuantizedTensor, or they differ in more than N.
    """
    if not hasattr(weights, "__iter__"):
        raise _core.QcoreTypeError(f"concatenate: weights is a {type(weights).__name__}, expected QuantizedTensors")
    given = list(weights)
    for i, kind in enumerate(map(type, given)):
        if not issubclass(kind, QuantizedTensor):
            raise _core.QcoreTypeError(f"concatenate: weights[{i}] is a {kind.__name__}, expected a QuantizedTensor")
    return QuantizedTensor._of(_core.concatenate([weight._handle for weight in given]))


@option_names("quantize")
def quantize(
    weight: Any,
    *,
    bits: int = BITS,
    block_size: int = BLOCK_SIZE,
    scheme: Scheme = SCHEME,
    method: Method = METHOD,
    samples: Any = None,
    scale_dtype: Any = SCALE_DTYPE,
    hessian: Any = None,
    damping: float = gptq.DAMPING,
    act_order: bool = False,
) -> QuantizedTensor:
    """Quantize a weight per block.

    Args:
        weight: float32, float16 or bfloat16 [N, K] or [Co, Ci, Kh, Kw] on the CPU, any strides, finite.
        bits: 2, 3, 4, 5, 6 or 8. A weight of 2, 3, 5 or 6 bits is an encoded one, [N, K] only, which the CPU kernels
            read as it is; see :func:`quantize_encoded` for other forms.
        block_size: g, elements along K (Ci) that share a scale, 1 or more; K need not be a multiple. In memory a block
            is padded to a multiple of 8 codes (4 bits) or 4 (others). Defaults: 4.5 bits per weight (docs/choices.md).
        scheme: "symmetric" (offset 0, codes of 4 and 8 bits within +-(2^(bits-1) - 1)) or "asymmetric" (the block's
            minimum and maximum are exact up to rounding, all 2^bits codes are used).
        method: "mse", the default, searches each block's clipping for the smallest squared error, never above that of
            "rtn", which rounds to nearest, and with ``samples`` counts an error of k by the mean of x_k^2. In a
            symmetric weight every method but "rtn" also uses the lowest code, -2^(bits-1), with a negative scale where
            a block's largest value is positive. "awq" is "mse" with ``samples``: the clipping search of AWQ (Lin et
            al., 2023). Its scaling of input channels needs the layer before: :func:`qcore.awq_scales`. "gptq" quantizes
            column by column, each column's error compensated by the columns after it, for the smallest error of the
            layer's output over the samples (Frantar et al., 2022); weights [N, K] only, scales by the search of "awq".
            It takes about 18 * K * K bytes more than the arguments (22 with ``act_order``).
        samples: inputs of the layer, numbers [M, K] ([M, Ci] for a convolution): needed for "awq" and "gptq", optional
            for "mse". For "gptq" M may be below K, a channel that is zero in all samples is rounded to nearest, and
            float32 rows on the CPU are not copied.
        scale_dtype: "float16", the default, rounds scales and offsets to fp16 before the codes are chosen: half the
            bytes of "float32" for them on the CPU, for a slightly larger error. Blocks whose scale is below 6e-8,
            fp16's smallest number, become zeros.
        hessian: for "gptq" in the place of samples: a :class:`qcore.Hessian`, which accumulates them over batches, or
            x^T x times any positive number, float32 or float64 [K, K], symmetric.
        damping: for "gptq": is added to the diagonal of x^T x, relative to its mean; 0 or more.
        act_order: for "gptq": quantize columns by falling mean square of their input rather than from the first to the
            last. Blocks stay consecutive columns, their scales are chosen beforehand ("static groups").

    Raises:
        QcoreValueError: a NaN or Inf (its index is named), a scale or an offset that ``scale_dtype`` cannot hold,
            samples that the method needs and lacks or does not take, a Hessian that is not positive definite with this
            damping, or an impossible shape or option.
        QcoreTypeError: another dtype, or no array.

    Example:
        >>> import numpy as np, qcore
        >>> weight = np.random.default_rng(0).standard_normal((256, 512), dtype=np.float32)
        >>> qcore.quantize(weight)
        QuantizedTensor(shape=[256, 512], bits=4, block_size=32, scheme='symmetric', device='cpu', 4.5 bits per weight)
    """
    _checks.choice(method, _METHODS, "quantize: method")
    features = weight.shape[1] if len(getattr(weight, "shape", ())) > 1 else 0
    options: dict[str, Any] = {"bits": bits, "block_size": block_size, "scheme": scheme, "scale_dtype": scale_dtype}
    if method != "gptq":
        _refuse_gptq_options(method, hessian, damping, act_order)
    if method != "gptq" or hessian is None:
        _check_samples(method, samples)
    if method == "gptq":
        factor = gptq.factor_of(samples, features, hessian=hessian, damping=damping, act_order=act_order)
        return quantize_weighted(weight, factor, method=method, **options)
    importance = None if samples is None else mean_squares(samples, features, "quantize: samples")
    return quantize_weighted(weight, importance, method=method, **options)


def _check_samples(method: Method, samples: Any) -> None:
    needs = _SAMPLED[method]
    if (needs == "needed" and samples is None) or (not needs and samples is not None):
        raise _core.QcoreValueError(
            f"quantize: samples is {'missing' if samples is None else 'given'}, expected inputs [M, K] with "
            "method='awq' or 'gptq', optional ones with 'mse', and None with 'rtn'"
        )


def _refuse_gptq_options(method: Method, hessian: Any, damping: float, act_order: bool) -> None:
    for name, given, default in (
        ("hessian", hessian, None),
        ("damping", damping, gptq.DAMPING),
        ("act_order", act_order, False),
    ):
        if given is not default and (default is None or given != default):
            shown = type(given).__name__ if default is None else repr(given)
            raise _core.QcoreValueError(
                f"quantize: {name} is {shown}, expected {default} with method={method!r}: it is for method='gptq'"
            )


def quantize_weighted(
    weight: Any,
    importance: npt.NDArray[np.float32] | gptq.Factor | None,
    *,
    bits: int,
    block_size: int,
    scheme: Scheme,
    method: Method,
    scale_dtype: Any,
) -> QuantizedTensor:
    """Quantize as :func:`quantize`, with what the method needs of the samples.

    That is the importance [K] of input channels as :func:`qcore.methods.samples.mean_squares` returns it, or for "gptq"
    the result of :func:`qcore.methods.gptq.factor_of`. Pieces of a weight's rows then share it.
    """
    _checks.choice(method, _METHODS, "quantize: method")
    form = gptq.Form(
        _checks.integer(bits, "quantize: bits", bits=32),
        _checks.integer(block_size, "quantize: block_size"),
        _checks.choice(scheme, _SCHEMES, "quantize: scheme"),
        _arrays.dtype_choice(scale_dtype, _SCALE_DTYPES, "quantize: scale_dtype"),
    )
    needs = isinstance(importance, gptq.Factor)
    made = _core.quantize(
        _arrays.readable(weight, "quantize: weight"),
        form.bits,
        form.block_size,
        form.symmetric,
        _core.Method.rtn if needs else _core.Method.awq if importance is not None else _METHODS[method],
        form.half_scales,
        None if needs else importance,
    )
    if not isinstance(importance, gptq.Factor):
        return QuantizedTensor._of(made)
    # The core has checked the weight and all options.
    if len(made.shape) != 2:
        raise _core.QcoreValueError(
            f"quantize: weight has shape {list(made.shape)}, expected [N, K] with method='gptq'"
        )
    wide = weight.detach().float().numpy() if hasattr(weight, "detach") else np.asarray(weight)
    return QuantizedTensor._of(gptq.quantize_columns(np.array(wide, np.float32, order="C"), importance, form))
