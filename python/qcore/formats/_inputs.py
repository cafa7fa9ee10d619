"""Checked arrays of a format, as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _arrays, _core

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
