"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary name in the same folder, then rename. An existing file's permissions are kept."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write as :func:`write_whole`, for content that is written in pieces; the rename is at the end of the block."""
    check_place(path)
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:  # which names the temporary file, that nobody has heard of
        raise OSError(error.errno, f"{error.strerror}, in writing to the folder {path.parent}", str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(partial, mode_for(path))
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def check_place(path: Path) -> None:
    """Raise OSError, which names the path, if its folder isn't there or if the path is a folder itself."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}, expected one", str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, expected the name of a file", str(path))


def mode_for(path: Path) -> int:
    """Return the permissions for a file of this name: those of an existing one, or those that a new one gets."""
    return path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
