"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary name in the same folder, then rename. An existing file's permissions are kept."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write as :func:`write_whole`, for content that is written in pieces; the rename is at the end of the block."""
    with whole_path(path) as partial, open(partial, "r+b") as file:
        yield file


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Yield the name of an empty file, for writers that open files themselves; it becomes ``path`` after the block.

    Raises:
        OSError: as :func:`check_place`, or the folder takes no file. An error of a full disk gets the name ``path``.
    """
    target = check_place(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        # The kernel applies the umask: to read it, a process must change it, for all of its threads.
        open(partial, "xb").close()
    except OSError as error:  # which names the temporary file, and the caller does not know that name
        text = f"cannot create a file in the folder {target.parent}: {error.strerror}"
        raise OSError(error.errno, text, str(path)) from None
    try:
        if target.exists():
            os.chmod(partial, 0o600)  # until it has the permissions of the file that it replaces
        yield partial
        _flush_to_disk(partial)
        keep_mode(partial, target)
        os.replace(partial, target)
    except BaseException as error:
        os.unlink(partial)
        name_full_disk(error, path)
        raise


def check_place(path: Path) -> Path:
    """Return the name to write to, with symbolic links resolved: a link stays, and the file that it names is written.

    Raises:
        OSError: the folder is not there, or the path is a folder, a device, a pipe or a socket.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}, expected one", str(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, expected the name of a file", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, expected the name of a file", str(path))
    return target


def check_input(path: Path) -> None:
    """Raise OSError, which names the path, if it is a folder: for readers that name nothing in their own error."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, expected a file", str(path))


def keep_mode(made: Path, target: Path) -> None:
    """Give a new file the permissions of the file that it replaces; without one, it keeps its own."""
    if target.exists():
        os.chmod(made, target.stat().st_mode & 0o777)


def name_full_disk(error: BaseException, path: Path) -> None:
    """Enter ``path`` in an error of a full disk, which names no file where a write to an open one has failed."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE and error.filename is None:
        error.filename = str(path)


def _flush_to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk: after a crash, a name without content would be worse than none."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
