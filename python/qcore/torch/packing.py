"""Caches objects of the core for plain tensors of torch.

An operator of a graph can take tensors only, if the graph is to be compiled, exported, saved and read in another
process. So a module's state is plain tensors, and the object of the core that reads them is made at the first call and
kept for the next ones, under the identity of their memory: for a weight it is a view without a copy. A script object,
or an opaque one of ``torch._library``, would not survive ``torch.export.save``.

An entry belongs to a storage, not to a tensor: compiled graphs pass aliases of a module's buffers. It holds weak
references to the storages, so that their addresses are not taken again while it lives, and the tensors' version
counters: for a tensor that was written to (``copy_``) the object is made anew. Writing through ``tensor.data`` does not
count versions and goes unnoticed, as it does in autograd.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass
class _Entry:
    storages: list[StorageWeakRef]
    versions: tuple[int, ...]
    packed: Any

    def is_alive(self) -> bool:
        return not any(storage.expired() for storage in self.storages)


_entries: dict[Any, _Entry] = {}
# Reentrant, because finalizers remove entries and may run inside any allocation, also of the thread that holds it.
_lock = threading.RLock()


def cached(tensors: Sequence[torch.Tensor | None], options: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return what ``make()`` returned for these tensors and options, until a tensor is freed or written to."""
    given = [tensor for tensor in tensors if tensor is not None]
    if any(tensor.is_inference() for tensor in given):
        return make()  # inference tensors have no version counters
    key = (options, *(_place(tensor) for tensor in tensors))
    versions = tuple(tensor._version for tensor in given)
    found = _entries.get(key)
    if found is not None and found.versions == versions and found.is_alive():
        return found.packed
    made = make()
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in given]
    with _lock:
        _prune()
        _entries[key] = _Entry(storages, versions, made)
    for tensor in given:
        weakref.finalize(tensor, _prune).atexit = False
    return made


def size() -> int:
    """Return the number of objects in the cache."""
    with _lock:
        _prune()
        return len(_entries)


def _place(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    # share_memory_() moves a storage without another identity: its address counts too.
    return tensor.untyped_storage()._cdata, tensor.data_ptr(), tensor.shape, tensor.stride()


def _prune() -> None:
    with _lock:
        for key in [key for key, entry in _entries.items() if not entry.is_alive()]:
            _entries.pop(key, None)
