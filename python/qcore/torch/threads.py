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

    Returns:
        Whether kernels use torch's threads now.

    Raises:
        QcoreValueError: QCORE_OPENMP is neither 0 nor 1, or is 1 and torch has no OpenMP library.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "0", "1"):
        raise _core.QcoreValueError(f"environment variable {VARIABLE} is {asked!r}, expected 0 or 1")
    passive = os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"
    if asked == "0" or (passive and not asked):
        return False
    addresses = _openmp_of_torch()
    if addresses is None:
        if asked:
            raise _core.QcoreValueError(
                f"environment variable {VARIABLE} is '1', but torch has no OpenMP library with GOMP_parallel here: "
                "expected 0 or nothing"
            )
        return False
    _core.use_openmp_threads(*addresses)
    return True


def _openmp_of_torch() -> tuple[int, int] | None:
    """Return the addresses of GOMP_parallel and omp_get_thread_num in the library that torch is linked with."""
    name = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")
    path = Path(torch.__file__).parent / "lib" / name
    try:
        # Symbols are looked up in the libraries that torch's own needs: the process may have other copies of OpenMP.
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        functions = library.GOMP_parallel, library.omp_get_thread_num
    except (OSError, AttributeError):
        return None
    parallel, thread_number = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return None if parallel is None or thread_number is None else (parallel, thread_number)
