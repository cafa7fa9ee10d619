"""Lets CPU kernels run on torch's threads."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import torch

from qcore import _core

VARIABLE = "QCORE_OPENMP"


def share_threads() -> bool:
    """Make the CPU kernels of this process run on the threads of torch's OpenMP library.

    A model runs operators of torch and of qcore in turn. If each had threads of its own, those of torch, which spin for
    some milliseconds after their work, would occupy the CPUs that the threads of qcore need, and then each library
    would have to wake its own. Nothing changes where torch has no such library, where its threads sleep at once
    (OMP_WAIT_POLICY=passive), which makes them slow to start, or where QCORE_OPENMP=0 keeps the threads of qcore;
    QCORE_OPENMP=1 uses torch's in any case.

    In each case kernels run on as many threads as ``torch.set_num_threads`` says, at most the CPUs of this process,
    unless ``qcore.set_num_threads`` was called or QCORE_NUM_THREADS is set.

    Returns:
        Whether kernels use torch's threads now.

    Raises:
        QcoreValueError: QCORE_OPENMP is neither 0 nor 1, or is 1 and torch has no OpenMP library.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "0", "1"):
        raise _core.QcoreValueError(f"environment variable {VARIABLE} is {asked!r}, expected 0 or 1")
    passive = os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"
    addresses = _openmp_of_torch()
    if asked == "0" or (passive and not asked):
        if addresses is not None:
            _core.use_openmp_threads(0, 0, addresses[2])
        return False
    if addresses is None:
        if asked:
            raise _core.QcoreValueError(
                f"environment variable {VARIABLE} is '1', but torch has no OpenMP library with GOMP_parallel here: "
                "expected 0 or nothing"
            )
        return False
    _core.use_openmp_threads(*addresses)
    return True


def _openmp_of_torch() -> tuple[int, int, int] | None:
    """Return the addresses of three functions in the OpenMP library that torch is linked with.

    They are GOMP_parallel, omp_get_thread_num and omp_get_max_threads.
    """
    name = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")
    path = Path(torch.__file__).parent / "lib" / name
    try:
        # Symbols are looked up in the libraries that torch's own needs: the process may have other copies of OpenMP.
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        functions = library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_max_threads
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    return (addresses[0], addresses[1], addresses[2]) if all(addresses) else None
