"""Keys and values of earlier tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from qcore import _arrays, _checks, _core

_CACHE_DTYPES = ("float32", "float16", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class KeyValueCache:
    """Holds the keys and values of one layer for B sequences of up to C tokens each.

    Attributes:
        keys: float32, float16, bfloat16 or int8 [B, Hkv, C, D]; the elements of a head are contiguous.
        values: like keys.
        key_scales: float32 [B, Hkv, C] for int8 keys, else None: an element is its code times the scale.
        value_scales: likewise.
    """

    keys: Any
    values: Any
    key_scales: Any = None
    value_scales: Any = None

    @classmethod
    def empty(
        cls, batch: int, kv_heads: int, capacity: int, head_size: int, dtype: Any = "float32", *, like: Any = None
    ) -> KeyValueCache:
        """Make an uninitialized cache.

        Args:
            batch: B.
            kv_heads: Hkv.
            capacity: C, the most tokens of a sequence.
            head_size: D.
            dtype: float32, float16, bfloat16 or int8.
            like: an array whose library and device the cache gets; NumPy by default.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        """
        where = "KeyValueCache.empty"
        name = _arrays.dtype_name(dtype)
        if name not in _CACHE_DTYPES:
            raise _core.QcoreTypeError(f"{where}: dtype is {dtype!r}, expected one of {', '.join(_CACHE_DTYPES)}")
        shape = tuple(
            _size(size, f"{where}: {argument}")
            for size, argument in (
                (batch, "batch"),
                (kv_heads, "kv_heads"),
                (capacity, "capacity"),
                (head_size, "head_size"),
            )
        )

        def make(extents: tuple[int, ...], kind: str) -> Any:
            if like is None:
                return _arrays.empty_numpy(extents, _arrays.numpy_dtype(kind), where)
            return _arrays.backend_of(like, f"{where}: like").empty(like, extents, kind, f"{where}: like")

        scales = [make(shape[:3], "float32") for _ in range(2)] if name == "int8" else [None, None]
        return cls(make(shape, name), make(shape, name), *scales)

    def _arrays(self, where: str) -> tuple[Any, Any, Any, Any]:
        """Return the arrays as the core takes them; ``where`` begins the error if one can't be written."""
        return (
            writable(self.keys, f"{where}: cache.keys"),
            writable(self.values, f"{where}: cache.values"),
            None if self.key_scales is None else writable(self.key_scales, f"{where}: cache.key_scales"),
            None if self.value_scales is None else writable(self.value_scales, f"{where}: cache.value_scales"),
        )


class Caches:
    """Holds the caches of all layers, prepared for :meth:`Decoder.forward`.

    A call takes a plain list of caches as well, but looks at each of its arrays again: make this object once, and a new
    one when a cache gets other arrays.

    Args:
        caches: one :class:`KeyValueCache` for each layer.

    Raises:
        QcoreValueError, QcoreTypeError: an array has a dtype or a kind that a cache can't have.
    """

    def __init__(self, caches: Sequence[KeyValueCache]) -> None:
        if not isinstance(caches, Iterable):
            raise _core.QcoreTypeError(
                f"decoder: caches is a {type(caches).__name__}, expected Caches or a KeyValueCache for each layer"
            )
        self._caches = list(caches)
        for index, cache in enumerate(self._caches):
            if not isinstance(cache, KeyValueCache):
                raise _core.QcoreTypeError(
                    f"decoder: caches[{index}] is a {type(cache).__name__}, expected a KeyValueCache"
                )
        self._arrays = [cache._arrays("decoder") for cache in self._caches]  # kept alive for the handle
        self._handle = _core.DecoderCaches(self._arrays)

    def __len__(self) -> int:
        return len(self._caches)

    def __getitem__(self, index: int) -> KeyValueCache:
        return self._caches[index]


def cache_arrays(cache: Any, op: str) -> tuple[Any, Any, Any, Any]:
    """Return the arrays of an operator's cache as the core takes them."""
    if not isinstance(cache, KeyValueCache):
        raise _core.QcoreTypeError(f"{op}: cache is a {type(cache).__name__}, expected a KeyValueCache")
    return cache._arrays(op)


def writable(array: Any, where: str) -> Any:
    """Return an array of any library as the core writes to it."""
    return _arrays.backend_of(array, where).writable(array, where)


def _size(value: Any, where: str) -> int:
    size = _checks.integer(value, where)
    if size < 0:
        raise _core.QcoreValueError(f"{where} is {size}, expected 0 or a positive number")
    return size
