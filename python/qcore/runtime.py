"""Kernels, threads and what this build can do."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Any

from qcore import _checks, _core

DEBUG = logging.DEBUG
LOG = logging.getLogger("qcore")
"""Tells decisions: kernels that ran at level DEBUG, what became of a model's layers at INFO. Nothing is shown unless
the program sets logging up."""
LOG.addHandler(logging.NullHandler())
_KERNEL_LOG = logging.getLogger("qcore.kernels")
logs_kernels = _KERNEL_LOG.isEnabledFor


def log_kernel(op: str, x: Any, weight: Any) -> None:
    """Log the kernel that has just run on the calling thread; call it only if ``logs_kernels(DEBUG)``."""
    shapes = [list(getattr(each, "shape", ())) for each in (x, weight)]
    _KERNEL_LOG.debug("%s: kernel %s for x %s and weight %s", op, last_kernel(op), *shapes)


def kernels(op: str | None = None) -> list[_core.KernelInfo]:
    """Return the rows of the kernel table, best first, of one operator or of all.

    Args:
        op: "linear", "conv2d", "gru" and so on; None for all.

    Returns:
        Objects with ``op``, ``name``, ``device`` ("cpu" or "cuda"), ``available`` on this machine, ``needs`` (what the
        kernel requires, in words) and ``runs``, how often it has run in this process.

    Raises:
        QcoreValueError: there is no such operator.
    """
    return _core.kernels("" if op is None else _checks.text(op, "kernels: op"))


def last_kernel(op: str) -> str:
    """Return the name of the kernel that the calling thread ran last; '' if it has run none.

    Args:
        op: an operator, as for :func:`kernels`.

    Raises:
        QcoreValueError: there is no such operator.
    """
    return _core.last_kernel(_checks.text(op, "last_kernel: op"))


class force_kernel:  # noqa: N801 - used like a function, as a context manager
    """Makes the calling thread's calls of ``op`` run the kernel ``name`` inside a ``with`` block.

    A call that the kernel can't take raises QcoreValueError with the reason. QCORE_FORCE_KERNEL="linear=reference" in
    the environment does the same for a whole process.

    Args:
        op: an operator, as for :func:`kernels`.
        name: of one of its kernels.

    Raises:
        QcoreValueError: there is no such kernel, or this machine can't run it.

    Example:
        >>> import qcore
        >>> with qcore.force_kernel("linear", "reference"):
        ...     pass
    """

    def __init__(self, op: str, name: str) -> None:
        self._op, self._name = _checks.text(op, "force_kernel: op"), _checks.text(name, "force_kernel: name")
        self._scopes: list[_core.ForceKernel] = []  # one object may be entered again inside itself

    def __enter__(self) -> force_kernel:
        self._scopes.append(_core.ForceKernel(self._op, self._name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scopes.pop()


def get_num_threads() -> int:
    """Return the number of threads of CPU kernels.

    That is the number of the last :func:`set_num_threads`, else QCORE_NUM_THREADS, else after ``import qcore.torch``
    that of ``torch.set_num_threads``, else OMP_NUM_THREADS, else the CPUs of this process: those it may run on, or
    fewer if the quota of a control group (a container's limit) allows fewer. torch's number counts up to these CPUs.
    """
    return _core.get_num_threads()


def set_num_threads(n: int) -> None:
    """Set the number of threads of CPU kernels. Results do not depend on it.

    Args:
        n: 1 to 1024.

    Raises:
        QcoreValueError, QcoreTypeError: another number.
    """
    _core.set_num_threads(_checks.integer(n, "set_num_threads: n", bits=32))


def package_dir() -> Path:
    """Return the folder of the compiled part, with include/ and lib/cmake/qcore/ beside it."""
    return Path(_core.__file__).resolve().parent


def info() -> dict[str, Any]:
    """Describe what this build and machine have.

    Returns:
        ``version``; ``isa``, the instruction sets that kernels may use, best last; ``threads``;
        ``openmp``, whether they are another library's (:mod:`qcore.torch`); ``cuda``, whether the backend is built and
        which devices there are; ``library``, the path of libqcore.
    """
    library = next(iter(sorted((package_dir() / "lib").glob("libqcore.*"))), None)
    return {
        "version": _core.__version__,
        "isa": _core.cpu_features(),
        "threads": get_num_threads(),
        "openmp": _core.uses_openmp_threads(),
        "cuda": _core.cuda_info(),
        "library": str(library) if library else None,
    }
