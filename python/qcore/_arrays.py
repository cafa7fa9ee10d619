"""DLPack in, the caller's framework out.

A *backend* knows one array library: how to hand its arrays to ``_core``, how to make a result, and which stream its
work runs on. Libraries are recognized by the module of the array's type and never imported from here.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from qcore import _checks, _core

T = TypeVar("T")

DTYPES = {
    "float32": _core.DType.f32,
    "float16": _core.DType.f16,
    "bfloat16": _core.DType.bf16,
    "int8": _core.DType.i8,
    "uint8": _core.DType.u8,
    "int32": _core.DType.i32,
    "int16": _core.DType.i16,
    "int64": _core.DType.i64,
}
"""Names of the dtypes that ``_core`` takes, with its numbers for them."""

FLOATING = ("float32", "float16", "bfloat16")


class ArrayBackend(Protocol):
    """Defines what the operators need to know about an array library."""

    def readable(self, x: Any, where: str) -> Any:
        """Return ``x``, or a stand-in that shares its memory where ``x`` itself can't be exported."""

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, where: str) -> Any:
        """Return an uninitialized, 64-byte aligned array on ``like``'s device; ``dtype`` None means ``like``'s own.

        ``where`` ("linear: x") begins the error if it can't be made.
        """

    def empty_image(self, like: Any, shape: tuple[int, int, int, int], dtype: str | None, where: str) -> Any:
        """Make an uninitialized array [N, C, H, W]; channels_last if ``like``, an image too, is."""

    def new_like(self, like: Any, where: str) -> tuple[Any, Any]:
        """Make an array like another, and what ``_core`` writes to in order to fill it.

        Shape and dtype are ``like``'s, and so is the order of axes where the library's own functions keep it.
        """

    def writable(self, array: Any, where: str) -> Any:
        """Return what ``_core`` writes to in order to fill ``array``."""

    def result(self, array: Any, like: Any) -> Any:
        """Return the filled array as the caller's library has it."""

    def take(self, x: Any, columns: Any) -> Any:
        """Return a copy of ``x`` with the last axis in the order of ``columns``, a NumPy array."""

    def stream(self, x: Any) -> int:
        """Return the address of the CUDA stream that the library's work on ``x`` runs on; 0 on the CPU."""


class NumPyBackend:
    def readable(self, x: Any, where: str) -> Any:
        if isinstance(x, np.ma.MaskedArray):
            raise _core.QcoreTypeError(f"{where} is a masked array, expected a plain one: fill it first")
        dtype = x.dtype
        if dtype.char == "E" and dtype.name == "bfloat16":  # of ml_dtypes, which no buffer format can name
            op, _, argument = where.partition(": ")
            return _core.as_bfloat16(x.view(np.int16), op, argument)
        return x

    writable = readable

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, where: str) -> Any:
        return empty_numpy(shape, like.dtype if dtype is None else numpy_dtype(dtype), where)

    def empty_image(self, like: Any, shape: tuple[int, int, int, int], dtype: str | None, where: str) -> Any:
        n, c, h, w = shape
        if not _is_channels_last(like):
            return self.empty(like, shape, dtype, where)
        return self.empty(like, (n, h, w, c), dtype, where).transpose(0, 3, 1, 2)

    def new_like(self, like: Any, where: str) -> tuple[Any, Any]:
        made = empty_numpy(like.shape, like.dtype, where)
        return made, self.writable(made, where)

    def result(self, array: Any, like: Any) -> Any:
        return array

    def take(self, x: Any, columns: Any) -> Any:
        return np.take(x, columns, axis=-1)

    def stream(self, x: Any) -> int:
        return 0


class TorchBackend:
    def readable(self, x: Any, where: str) -> Any:
        if x.is_meta:
            raise _core.QcoreValueError(
                f"{where} is on the meta device, which has no values, expected the CPU or a CUDA device: load the "
                "values first"
            )
        if sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(x):
            raise _core.QcoreTypeError(
                f"{where} is a tensor inside a transform of torch.func (vmap, grad, ...), expected one with memory of "
                "its own: use torch.ops.qcore or a module of qcore.torch there"
            )
        if x.requires_grad:
            if sys.modules["torch"].is_grad_enabled():
                raise _core.QcoreValueError(
                    f"{where} requires grad, and this operator records none: pass {where.rpartition(' ')[2]}.detach(), "
                    "or call it under torch.no_grad()"
                )
            x = x.detach()
        # A lazily negated view holds the values with the opposite sign.
        return x.resolve_neg() if x.is_neg() else x

    def writable(self, array: Any, where: str) -> Any:
        if array.is_neg() or array.is_conj():
            raise _core.QcoreValueError(f"{where} is a lazily negated or conjugated view, expected plain memory")
        return self.readable(array, where)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, where: str) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=like.dtype if dtype is None else getattr(torch, dtype), device=like.device)

    def empty_image(self, like: Any, shape: tuple[int, int, int, int], dtype: str | None, where: str) -> Any:
        torch = sys.modules["torch"]
        last = not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        kind = like.dtype if dtype is None else getattr(torch, dtype)
        return torch.empty(shape, dtype=kind, device=like.device, memory_format=layout)

    def new_like(self, like: Any, where: str) -> tuple[Any, Any]:
        made = sys.modules["torch"].empty_like(like, requires_grad=False)
        return made, made

    def result(self, array: Any, like: Any) -> Any:
        return array

    def take(self, x: Any, columns: Any) -> Any:
        return x.index_select(-1, sys.modules["torch"].from_numpy(columns.copy()).to(x.device))

    def stream(self, x: Any) -> int:
        if not x.is_cuda:
            return 0
        return int(sys.modules["torch"].cuda.current_stream(x.device).cuda_stream)


class CuPyBackend:
    """CuPy's arrays. Its functions work on the current device, which may be another than that of an array."""

    def readable(self, x: Any, where: str) -> Any:
        return x

    writable = readable

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, where: str) -> Any:
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype=like.dtype if dtype is None else dtype)

    def empty_image(self, like: Any, shape: tuple[int, int, int, int], dtype: str | None, where: str) -> Any:
        n, c, h, w = shape
        if not _is_channels_last(like):
            return self.empty(like, shape, dtype, where)
        return self.empty(like, (n, h, w, c), dtype, where).transpose(0, 3, 1, 2)

    def new_like(self, like: Any, where: str) -> tuple[Any, Any]:
        with like.device:
            made = sys.modules["cupy"].empty_like(like)
        return made, made

    def result(self, array: Any, like: Any) -> Any:
        return array

    def take(self, x: Any, columns: Any) -> Any:
        cupy = sys.modules["cupy"]
        with x.device:
            return cupy.take(x, cupy.asarray(columns), axis=-1)

    def stream(self, x: Any) -> int:
        with x.device:  # not an argument of get_current_stream, which older releases lack
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)


class DLPackBackend:
    """Any other producer: results are made in memory of ours and imported by the library's own ``from_dlpack``."""

    def readable(self, x: Any, where: str) -> Any:
        _device_type(x, where)
        return x

    writable = readable

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, where: str) -> Any:
        if _device_type(like, where) not in (1, 3):
            raise _core.QcoreValueError(
                f"{where} is a {type(like).__module__}.{type(like).__qualname__} on another device than the CPU, where "
                "no results can be made for it: pass out= in an array of this device"
            )
        name = dtype_of(like, where) if dtype is None else dtype
        # An unknown dtype of x is an argument error, and the operator words it better once it sees x itself.
        return _core.empty_array(list(shape), DTYPES.get(name, _core.DType.f32) if dtype is None else DTYPES[name])

    def empty_image(self, like: Any, shape: tuple[int, int, int, int], dtype: str | None, where: str) -> Any:
        return self.empty(like, shape, dtype, where)

    def new_like(self, like: Any, where: str) -> tuple[Any, Any]:
        made = self.empty(like, tuple(shape_of(like, where)), None, where)
        return made, made

    def result(self, array: Any, like: Any) -> Any:
        namespace = getattr(like, "__array_namespace__", None)
        return namespace().from_dlpack(array) if namespace else np.from_dlpack(array)

    def take(self, x: Any, columns: Any) -> Any:
        namespace = getattr(x, "__array_namespace__", None)
        if namespace is None:
            return np.take(np.from_dlpack(x), columns, axis=-1)
        return namespace().take(x, namespace().asarray(columns), axis=-1)

    def stream(self, x: Any) -> int:
        return 0


def _is_channels_last(x: Any) -> bool:
    """Tell whether an array [N, C, H, W] of NumPy's kind lies in the order of [N, H, W, C] and of no other."""
    return not x.flags.c_contiguous and bool(x.transpose(0, 2, 3, 1).flags.c_contiguous)


_NUMPY, _TORCH, _CUPY, _DLPACK = NumPyBackend(), TorchBackend(), CuPyBackend(), DLPackBackend()
_BY_MODULE: dict[str, ArrayBackend] = {"numpy": _NUMPY, "torch": _TORCH, "cupy": _CUPY}


@functools.lru_cache(maxsize=256)
def _backend_of_type(kind: type) -> ArrayBackend | None:
    for base in kind.__mro__:
        known = _BY_MODULE.get(base.__module__.partition(".")[0])
        if known is not None and hasattr(kind, "shape"):
            return known
    return _DLPACK if hasattr(kind, "__dlpack__") else None


def backend_of(x: Any, where: str) -> ArrayBackend:
    """Return the backend of an array; ``where`` ("linear: x") begins the error if it is none."""
    found = _backend_of_type(type(x))  # type: ignore[arg-type]  # mypy sees the hash of the instances
    if found is None:
        given = f"the class {x.__name__}" if isinstance(x, type) else f"a {type(x).__name__}"
        raise _core.QcoreTypeError(
            f"{where} is {given}, expected an array with __dlpack__ (numpy, torch, jax, cupy, ...){_hint(x)}"
        )
    return found


def _hint(x: Any) -> str:
    """Return what to pass in the place of an object that is often taken for an array; empty if it is none of them."""
    torch = sys.modules.get("torch")
    if isinstance(x, type):
        return ": pass an object of it" if hasattr(x, "shape") else ""
    if torch is not None and isinstance(x, torch.nn.Module):
        return ": pass its .weight, or the model that has it to qcore.torch.quantize_"
    if isinstance(x, Mapping):
        return ": pass one of its values"
    if isinstance(x, os.PathLike):
        return ": qcore.load(path) reads a file's arrays"
    if type(x).__module__.startswith("qcore.") and hasattr(x, "dequantize"):
        return ": it is quantized already, and its dequantize() makes an array"
    return ""


def readable(x: Any, where: str) -> Any:
    """Return an array of any backend as ``_core`` takes it."""
    return backend_of(x, where).readable(x, where)


def shape_of(x: Any, where: str) -> tuple[int, ...]:
    """Return the shape of an array, also of one that has nothing but the methods of DLPack."""
    try:
        shape: tuple[int, ...] = x.shape
    except AttributeError:
        shape = _numpy_view(x, where).shape
    return shape


def dtype_of(x: Any, where: str) -> str:
    """Return the name of an array's dtype, likewise."""
    dtype = getattr(x, "dtype", None)
    return dtype_name(_numpy_view(x, where).dtype if dtype is None else dtype)


def _numpy_view(x: Any, where: str) -> np.ndarray[Any, Any]:
    backend_of(x, where)  # raises for what is no array
    try:
        return np.from_dlpack(x)
    except Exception as error:  # whatever the object raises
        raise _core.QcoreTypeError(
            f"{where} is a {type(x).__name__} without shape and dtype, and NumPy can't read it, expected an array with "
            f"shape and dtype, or on the CPU: {error}"
        ) from error


def _device_type(x: Any, where: str) -> int:
    """Return DLPack's number of the kind of device that an array lies on: 1 for the CPU."""
    try:
        device = x.__dlpack_device__()
    except Exception as error:  # whatever the library raises for an array without memory, such as jax's tracers
        raise _core.QcoreTypeError(
            f"{where} is a {type(x).__name__} without memory to read, expected an array with values: {error}"
        ) from error
    try:
        kind, _ = device
        return operator.index(kind)
    except (TypeError, ValueError):
        raise _core.QcoreTypeError(
            f"{where} is a {type(x).__name__} whose __dlpack_device__() returns {device!r}, expected two integers: the "
            "device's type and its index"
        ) from None


def empty_numpy(shape: tuple[int, ...], dtype: np.dtype[Any], where: str = "qcore") -> np.ndarray[Any, Any]:
    """Make an uninitialized array as ``numpy.empty`` does, aligned to 64 bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        buffer = np.empty(nbytes + 64, np.uint8)
    except (ValueError, MemoryError) as error:
        kind = _core.QcoreValueError if isinstance(error, ValueError) else MemoryError
        raise kind(
            f"{where.partition(':')[0]}: a result would be {dtype} {list(shape)}, {nbytes} bytes, expected one that "
            "fits in memory"
        ) from None
    return np.ndarray(shape, dtype, buffer, _core.line_offset(buffer))


_plain_dtype = functools.lru_cache(maxsize=64)(np.dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of that name; bfloat16 is ml_dtypes's."""
    if name != "bfloat16":
        return _plain_dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise _core.QcoreTypeError(
            "bfloat16 arrays of NumPy need the package ml_dtypes: pip install ml-dtypes"
        ) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def dtype_name(dtype: Any) -> str:
    """Return 'float16' for "float16", numpy.float16, torch.float16, jax.numpy.float16, ..."""
    try:
        return _known_name(type(dtype).__module__, dtype)
    except TypeError:  # it can't be hashed
        return _name_of(dtype)


@functools.lru_cache(maxsize=256)
def _known_name(library: str, dtype: Any) -> str:
    """Return a dtype's name; ``library`` keeps the cache from comparing dtypes of two of them: some warn."""
    return _name_of(dtype)


def _name_of(dtype: Any) -> str:
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, type):
        return np.dtype(dtype).name
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def dtype_choice(dtype: Any, choices: Mapping[str, T], where: str) -> T:
    """Return the entry that a dtype names."""
    name = dtype_name(dtype)
    return _checks.choice(name if name in choices else dtype, choices, where)


def floating_dtype(dtype: Any, where: str) -> str | None:
    """Check a requested output dtype and return its name, None for none."""
    if dtype is None:
        return None
    name = dtype_name(dtype)
    if name not in FLOATING:
        raise _core.QcoreTypeError(f"{where} is {dtype!r}, expected float32, float16 or bfloat16")
    return name


def _is_on_cpu(x: Any, where: str) -> bool:
    return hasattr(x, "__dlpack_device__") and _device_type(x, where) == 1


def stream_address(stream: Any, x_backend: ArrayBackend, x: Any, where: str) -> int:
    """Return the address of a caller's ``stream=``: None (the current one), an address, or a stream object."""
    if stream is None:
        return x_backend.stream(x)
    address = stream
    for attribute in ("cuda_stream", "ptr", "handle"):
        address = getattr(address, attribute, address)
    if isinstance(address, int) and not isinstance(address, bool) and 0 <= address < 2**64:
        if address != 0 and _is_on_cpu(x, where):
            raise _core.QcoreValueError(
                f"{where} is {stream!r} and the arrays are on the CPU, expected None or 0: only CUDA devices have "
                "streams"
            )
        return address
    raise _core.QcoreTypeError(f"{where} is {stream!r}, expected a stream object or its address")
