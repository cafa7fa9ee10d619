"""Workers that quantize the pieces of a checkpoint: threads of this process, or processes of a Dask cluster."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from qcore import _core
from qcore.formats.checkpoint.chunks import Converted, Piece, convert
from qcore.runtime import get_num_threads

if TYPE_CHECKING:
    from qcore.formats.checkpoint.options import Options
    from qcore.formats.checkpoint.targets.target import Target

_MOST_THREADS = 4


class Pending(Protocol):
    """A piece that is under way."""

    def result(self) -> Converted:
        """Wait for it."""

    def cancel(self) -> object:
        """Cancel the piece, whose result is not needed any more."""


class Workers(Protocol):
    def submit(self, piece: Piece, options: Options, layout: Target) -> Pending:
        """Begin with a piece; doesn't wait."""

    def most(self, layout: Target) -> int:
        """Return the pieces that are under way at a time: what bounds the memory."""


class Threads:
    """Converts pieces in threads.

    One piece more than there are threads is under way, so that none of them waits while the caller writes. A layout
    that takes a tensor in one piece has one at a time.
    """

    def __init__(self) -> None:
        self._threads = min(get_num_threads(), _MOST_THREADS)
        self._pool = ThreadPoolExecutor(self._threads)
        self._token = _core.CancelToken()

    def submit(self, piece: Piece, options: Options, layout: Target) -> Future[Converted]:
        return self._pool.submit(self._convert, piece, options, layout)

    def _convert(self, piece: Piece, options: Options, layout: Target) -> Converted:
        with self._token:
            return convert(piece, options, layout)

    def most(self, layout: Target) -> int:
        return self._threads + 1 if layout.by_rows else 1

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # an interrupt, above all: the pieces under way are of no use
            self._token.cancel()
        self._pool.shutdown(cancel_futures=error is not None)
