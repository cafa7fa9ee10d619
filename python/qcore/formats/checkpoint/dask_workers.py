"""`qcore quantize --dask`: pieces of a checkpoint quantized by the workers of a Dask cluster.

A worker reads its piece of the input from a file system that it shares with the client, and sends back what is to be
written; the client alone writes. So a worker that dies leaves nothing behind, and Dask gives its pieces to another.
Errors of a piece come back as values: raised, Dask would print them where the worker runs.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.chunks import Converted, Piece, convert
from qcore.formats.checkpoint.workers import Pending
from qcore.methods.gptq import Factor

if TYPE_CHECKING:
    from qcore.formats.checkpoint.options import Options
    from qcore.formats.checkpoint.targets.target import Target

_CONNECT_SECONDS = 10
_WORKER_SECONDS = 60
_COUNT_SECONDS = 2.0
_PER_THREAD = 2
"""Pieces under way for each thread of the cluster: one that it works on, one that waits."""


def package() -> Any:
    """Return the module distributed.

    Raises:
        QcoreTypeError: it is not installed.
    """
    try:
        import distributed
    except ImportError as error:
        raise _core.QcoreTypeError(
            "quantize: --dask needs the package distributed: pip install 'libqcore[dask]'"
        ) from error
    return distributed


@contextmanager
def connected(address: str) -> Iterator[DaskWorkers]:
    """Yield the workers of a cluster.

    Args:
        address: of the scheduler ("tcp://10.0.0.1:8786"), the name of the file with it (".json"), or "local" for a
            process per core of this machine.

    Raises:
        QcoreTypeError: Dask is not installed.
        OSError: there is no such cluster, or it has no worker.
    """
    distributed = package()
    with ExitStack() as stack:
        try:
            stack.enter_context(_quiet())
            place: Any = address
            if address == "local":
                place = stack.enter_context(
                    distributed.LocalCluster(
                        threads_per_worker=1,
                        dashboard_address="127.0.0.1:0",
                        silence_logs=logging.CRITICAL,
                        env={"QCORE_NUM_THREADS": "1"},
                    )
                )
            where = {"address": place}
            if address.endswith(".json"):
                Path(address).stat()  # Dask would wait for it
                where = {"scheduler_file": address}
            elif address != "local":
                distributed.comm.get_address_host(address)  # a client that fails over it can't be closed
            client = distributed.Client(**where, timeout=_CONNECT_SECONDS, set_as_default=False)
            stack.enter_context(client)
            client.wait_for_workers(1, timeout=_WORKER_SECONDS)
        except (OSError, ValueError, TypeError) as error:
            raise OSError(f"quantize: --dask {address}: {error}, expected a Dask cluster with workers") from error
        yield DaskWorkers(client)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the package's own log of connections that are lost: what matters becomes an error."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    levels = {name: logging.getLogger(name).level for name in names}  # Dask gives some of them their own
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@dataclass(frozen=True)
class _Task:
    """Holds the task that is sent to a worker."""

    piece: Piece
    options: Options
    size: int
    mtime_ns: int
    """With the size: of the input as the client sees it."""
    version: str


class DaskWorkers:
    """The workers of a cluster, for ``quantize_checkpoint``.

    They need the same version of qcore, and the input under the same absolute path.

    Args:
        client: a ``distributed.Client``.

    Raises:
        QcoreValueError: the scheduler or a worker has no qcore, or another version of it.
    """

    def __init__(self, client: Any) -> None:
        _check_versions(client)
        self._client = client
        self._files: dict[Path, tuple[Path, int, int]] = {}
        self._most = 0
        self._counted = -_COUNT_SECONDS

    def submit(self, piece: Piece, options: Options, layout: Target) -> Pending:
        if not piece.method:  # the client has the file too
            here: Future[Converted] = Future()
            here.set_result(convert(piece, options, layout))
            return here
        path, size, mtime_ns = self._file(piece.section.path)
        sent = replace(piece, section=replace(piece.section, path=path))
        task = _Task(sent, options, size, mtime_ns, _core.__version__)
        with _lost(piece.name):
            return _Sent(piece.name, self._client.submit(_converted, task, pure=False))

    def most(self, layout: Target) -> int:
        now = time.monotonic()
        if now - self._counted >= _COUNT_SECONDS:  # workers come and go
            with _lost():
                self._most = _PER_THREAD * max(1, sum(self._client.nthreads().values()))
            self._counted = now
        return self._most

    def _file(self, path: Path) -> tuple[Path, int, int]:
        if path not in self._files:
            status = path.stat()
            self._files[path] = path.resolve(), status.st_size, status.st_mtime_ns
        return self._files[path]


def _check_versions(client: Any) -> None:
    """Check versions before anything is sent: workers that can't read their tasks may die one after the other."""
    with _lost():
        answers = client.run(version, "libqcore", on_error="return")
        found = {f"worker {place}": each for place, each in answers.items()}
        try:
            found["scheduler"] = client.run_on_scheduler(version, "libqcore")
        except PackageNotFoundError as error:
            found["scheduler"] = error
    for place, there in found.items():
        if there != _core.__version__:
            given = "no libqcore" if isinstance(there, PackageNotFoundError) else f"libqcore {there}"
            raise _core.QcoreValueError(
                f"quantize: --dask: the {place} has {given}, expected libqcore {_core.__version__}, as here"
            )


class _Sent:
    def __init__(self, name: str, future: Any) -> None:
        self._name, self._future = name, future

    def result(self) -> Converted:
        try:
            with _lost(self._name):
                found = self._future.result()
        finally:
            self._future.release()
        if isinstance(found, Exception):
            raise found
        converted: Converted = found
        return converted

    def cancel(self) -> None:
        self._future.release()


@contextmanager
def _lost(name: str = "") -> Iterator[None]:
    """Turn what the cluster raises into an OSError: the work that is done is kept for the next run."""
    distributed = package()
    at = f"quantize: --dask: tensor {name!r}" if name else "quantize: --dask"
    try:
        yield
    except distributed.scheduler.KilledWorker as error:
        raise OSError(
            f"{at}: {error.allowed_failures + 1} workers died while they had a piece of it, the last at "
            f"{error.last_worker.address}; expected workers with enough memory"
        ) from error
    except Exception as error:
        raise OSError(f"{at}: the cluster failed: {type(error).__name__}: {error}") from error


def _aligned(inputs: NDArray[Any] | Factor | None) -> NDArray[Any] | Factor | None:
    """Return arrays at addresses that their dtype needs: in a message they lie at any."""
    if isinstance(inputs, Factor):
        upper, importance = (np.require(each, requirements="A") for each in (inputs.upper, inputs.importance))
        return Factor(upper, importance, None if inputs.order is None else np.require(inputs.order, requirements="A"))
    return None if inputs is None else np.require(inputs, requirements="A")


def _converted(task: _Task) -> Converted | Exception:
    """Convert a piece, in a worker."""
    if task.version != _core.__version__:
        return _core.QcoreValueError(
            f"quantize: --dask: the worker on {socket.gethostname()} has qcore {_core.__version__}, expected "
            f"{task.version}, as here"
        )
    path = task.piece.section.path
    try:
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) != (task.size, task.mtime_ns):
            return _core.QcoreValueError(
                f"quantize: --dask: the worker on {socket.gethostname()} has another file {path} ({status.st_size} "
                f"bytes), expected the one of here ({task.size} bytes, its time counts too) on a file system that "
                "workers share"
            )
        piece = replace(task.piece, inputs=_aligned(task.piece.inputs))
        return convert(piece, task.options, task.options.target())
    except OSError as error:
        return OSError(
            f"quantize: --dask: the worker on {socket.gethostname()} can't read {path}: {error.strerror or error}, "
            "expected a file system that workers share"
        )
    except _core.QcoreError as error:
        return error
