"""Files that appear whole or not at all."""

from __future__ import annotations

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
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(partial, mode_for(path))
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def mode_for(path: Path) -> int:
    """Permissions of a file that takes this name: those of the one that has it, or what a new one gets."""
    return path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
