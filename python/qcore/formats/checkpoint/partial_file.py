"""A file that is written in pieces over several runs and gets its name when it is whole.

Beside PATH there are, until then, PATH.partial and PATH.partial.journal: a line with the run's fingerprint, then a line
per finished tensor with the CRC-32 of its bytes. A run with the same fingerprint takes over the tensors whose bytes
still have that checksum; any other run starts anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from qcore import _core, _files
from qcore.formats.checkpoint.saving import byte_view

Places = Mapping[str, tuple[int, int]]
_READ_BYTES = 1 << 20


class PartialFile:
    """A file that is being written, as a context manager.

    An error of ours removes it, anything else (an interrupt, a full disk) leaves it for the next run.

    Attributes:
        finished: names that an earlier run has written.
        discarded: True if an earlier run of another fingerprint was thrown away.
    """

    def __init__(self, path: Path, header: bytes, size: int, fingerprint: str, places: Mapping[str, Places]) -> None:
        self.path = path
        self._target = _files.check_place(path)
        self.partial = self._target.with_name(self._target.name + ".partial")
        self.journal = self._target.with_name(self._target.name + ".partial.journal")
        self._places = places
        self._handle = self._open_locked()
        try:
            lines = self._journal_lines()
            known = bool(lines) and lines[0] == {"run": fingerprint}
            self.discarded = bool(lines) and not known
            self._intact = self._intact_lines(lines[1:], size) if known else {}
            self.finished = set(self._intact)
            self._start({"run": fingerprint}, header, size)
        except BaseException as error:
            os.close(self._handle)
            _files.name_full_disk(error, path)
            raise

    def _open_locked(self) -> int:
        """Open the partial file and lock it.

        Between the two, the process that held the lock may have given the file its name, or removed it. The lock is
        then that of another file, which must not be touched, and this opens a new one.
        """
        while True:
            handle = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(handle)
                if self._is_partial(handle):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _core.QcoreValueError(f"quantize: {self.partial} is being written by another process") from None

    def _is_partial(self, handle: int) -> bool:
        """Tell whether the partial file's name is still that of an open file."""
        try:
            named = os.stat(self.partial)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(handle), named)

    def _journal_lines(self) -> list[Any]:
        if not self.journal.is_file():
            return []
        found = []
        for line in self.journal.read_bytes().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # the line at which a run was killed
                break
        return found

    def _intact_lines(self, lines: list[Any], size: int) -> dict[str, Any]:
        if os.fstat(self._handle).st_size != size:
            return {}
        found: dict[str, Any] = {}
        for line in lines:
            name = str(line.get("tensor")) if isinstance(line, dict) else ""
            if name in self._places and self._checksum(self._places[name]) == line.get("crc32"):
                found[name] = line
        return found

    def _checksum(self, places: Places) -> dict[str, int]:
        found = {}
        for part, (offset, nbytes) in places.items():
            crc, end = 0, offset + nbytes
            while offset < end:
                piece = os.pread(self._handle, min(_READ_BYTES, end - offset), offset)
                if not piece:
                    break
                crc = zlib.crc32(piece, crc)
                offset += len(piece)
            found[part] = crc
        return found

    def _start(self, run: Any, header: bytes, size: int) -> None:
        lines = [run, *self._intact.values()]
        if not self._intact:
            os.ftruncate(self._handle, 0)
            if size and hasattr(os, "posix_fallocate"):  # which macOS lacks
                os.posix_fallocate(self._handle, 0, size)  # a full disk is found before the work, not after it
            _write_at(self._handle, header, 0)
        _files.write_whole(self.journal, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def _append(self, line: Any) -> None:
        with open(self.journal, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def tensor(self, name: str) -> TensorWriter:
        """Return where the parts of a tensor go."""
        return TensorWriter(self._handle, self._places[name])

    def finish_tensor(self, name: str, writer: TensorWriter) -> None:
        """Enter it in the journal."""
        self._append({"tensor": name, "crc32": writer.checksums()})
        self.finished.add(name)

    def finish(self) -> None:
        """Give the file its name.

        The journal goes first: as soon as the file has its name, another process may begin a partial file and a
        journal of its own.
        """
        os.fsync(self._handle)
        _files.keep_mode(self.partial, self._target)
        self.journal.unlink(missing_ok=True)
        os.replace(self.partial, self._target)

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, _core.QcoreError) and self._is_partial(self._handle):
                self.journal.unlink(missing_ok=True)
                self.partial.unlink()  # last: the lock is on it, and with it goes that on the journal
            if error is not None:
                _files.name_full_disk(error, self.path)
        finally:
            os.close(self._handle)


class TensorWriter:
    """Appends to each part of a tensor."""

    def __init__(self, handle: int, places: Places) -> None:
        self._handle = handle
        self._places = places
        self._written = dict.fromkeys(places, 0)
        self._crc = dict.fromkeys(places, 0)

    def write(self, part: str, values: NDArray[Any]) -> None:
        data = byte_view(values).data
        offset, nbytes = self._places[part]
        if self._written[part] + data.nbytes > nbytes:
            raise AssertionError(f"{part} has {nbytes} bytes, {self._written[part]} of them written: got {data.nbytes}")
        _write_at(self._handle, data, offset + self._written[part])
        self._written[part] += data.nbytes
        self._crc[part] = zlib.crc32(data, self._crc[part])

    def checksums(self) -> dict[str, int]:
        """Return CRC-32 of each part, all of which are complete."""
        for part, (_, nbytes) in self._places.items():
            if self._written[part] != nbytes:
                raise AssertionError(f"{part} has {nbytes} bytes, {self._written[part]} of them written")
        return dict(self._crc)


def _write_at(handle: int, data: bytes | memoryview, offset: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(handle, left, offset)
        left, offset = left[count:], offset + count
