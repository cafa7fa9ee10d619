"""Arrays next to memory that can't be touched: a kernel that reads or writes beyond them ends the process."""

import ctypes
import mmap

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_kept = []  # mappings whose pages an array may still need


def before_a_guard(values):
    """Return a copy of an array [n, ...] whose last byte, in C order, is the last one of a page."""
    values = np.ascontiguousarray(values)
    page = mmap.PAGESIZE
    length = -(-max(values.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, length + 2 * page)
    _kept.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (address, address + page + length):
        if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    placed = np.frombuffer(memory, values.dtype, values.size, page + length - values.nbytes).reshape(values.shape)
    placed[...] = values
    return placed
