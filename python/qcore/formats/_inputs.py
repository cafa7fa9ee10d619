"""Checked arrays of a format, as NumPy's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _arrays, _core
from qcore.weight_encoding import Parameter

Words = NDArray[np.uint32]
Reals = NDArray[np.float32]


def host(x: Any, where: str) -> NDArray[Any]:
    """Return an array of any library, in host memory."""
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        return x
    _arrays.readable(x, where)
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _core.QcoreTypeError(
            f"{where} is a {type(x).__name__} that NumPy can't read, expected an array in host memory: {error}"
        ) from error


def check_shape(array: NDArray[Any], expected: tuple[int, ...], where: str, names: str) -> None:
    if array.shape != expected:
        raise _core.QcoreValueError(
            f"{where} has shape {list(array.shape)}, expected {list(expected)}, which is {names}"
        )


def matrix(array: NDArray[Any], where: str, names: str) -> None:
    if array.ndim != 2 or 0 in array.shape:
        raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected a matrix {names}")


def words(x: Any, where: str, names: str) -> Words:
    """Return a matrix of int32 or uint32, contiguous and little-endian: its bytes are in the order of its bits."""
    array = host(x, where)
    if array.dtype.kind not in "iu" or array.dtype.itemsize != 4:
        raise _core.QcoreTypeError(f"{where} has dtype {array.dtype}, expected int32")
    matrix(array, where, names)
    return np.ascontiguousarray(array.astype(f"<{array.dtype.kind}4", copy=False)).view(np.dtype("<u4"))


def octets(x: Any, where: str) -> NDArray[np.uint8]:
    array = host(x, where)
    if array.dtype != np.uint8:
        raise _core.QcoreTypeError(f"{where} has dtype {array.dtype}, expected uint8")
    return array


def reals(x: Any, where: str, dtypes: tuple[str, ...] = _arrays.FLOATING) -> Reals:
    """Return finite numbers of one of ``dtypes``, in float32, which holds them exactly."""
    array = host(x, where)
    if array.dtype.name not in dtypes:
        raise _core.QcoreTypeError(f"{where} has dtype {array.dtype}, expected {' or '.join(dtypes)}")
    values = array.astype(np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        raise _core.QcoreValueError(f"{where} has {values[index]} at index {list(index)}, expected finite numbers")
    return values


def number(x: Any, where: str) -> np.float32:
    """Return one finite number: a Python float, or an array of float32 with one element."""
    values = reals(np.asarray(x, np.float32) if isinstance(x, (int, float, np.float32)) else x, where, ("float32",))
    if values.size != 1:
        raise _core.QcoreValueError(f"{where} has shape {list(values.shape)}, expected one number")
    return np.float32(values.reshape(-1)[0])


def small_floats(x: Any, where: str, dtype: str) -> NDArray[np.uint8]:
    """Return the bytes of floats of 8 bits, which are ``dtype`` or uint8 already."""
    if str(getattr(x, "dtype", "")) == f"torch.{dtype}":
        x = x.view(sys.modules["torch"].uint8)  # torch's exchange has no such dtype for NumPy
    array = host(x, where)
    if array.dtype.name not in (dtype, "uint8"):
        raise _core.QcoreTypeError(f"{where} has dtype {array.dtype}, expected {dtype} or uint8")
    return np.ascontiguousarray(array).view(np.uint8)


def smallest_floats(values: Reals, *, bfloat16_first: bool = False) -> tuple[Any, Parameter]:
    """Return numbers in the smallest of float16, bfloat16 and float32 that holds all of them, and its name.

    Numbers that were bfloat16 may all be float16, too: with ``bfloat16_first`` they are bfloat16 always, so that the
    weights of a model have one encoding. bfloat16 needs no ml_dtypes here.
    """
    singles = np.ascontiguousarray(values, np.float32)
    is_bfloat = not (singles.view(np.uint32) & 0xFFFF).any()
    with np.errstate(over="ignore"):
        halves = singles.astype(np.float16)
    if not (bfloat16_first and is_bfloat) and np.array_equal(halves.astype(np.float32), singles):
        return halves, "float16"
    if not is_bfloat:
        return singles, "float32"
    words = (singles.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
    return _core.as_bfloat16(words, "from_encoded", "scales"), "bfloat16"
