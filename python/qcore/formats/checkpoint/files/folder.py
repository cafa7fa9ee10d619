"""Which files a path means: a single file, the shards that an index names, or a folder with either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import Section
from qcore.formats.checkpoint.files.safetensors import (
    MOST_HEADER_BYTES,
    SafetensorsFile,
    parse_json,
    read_header,
    short,
)

INDEX_SUFFIX = ".safetensors.index.json"


def find_file(path: Path) -> Path:
    """Return the .safetensors, .gguf or index file that stands for ``path``.

    Raises:
        QcoreValueError: a folder holds none of them, or several of equal right.
        OSError: there is nothing at ``path``.
    """
    if not path.is_dir():
        path.stat()
        return path
    for pattern in (f"*{INDEX_SUFFIX}", "*.safetensors", "*.gguf"):
        found = sorted(path.glob(pattern))
        if len(found) > 1:
            found = [file for file in found if file.name == f"model{pattern[1:]}"] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise _core.QcoreValueError(
                f"open_checkpoint: {path} has {len(found)} files {pattern} ({found[0].name}, {found[1].name}, ...), "
                "expected one: name it"
            )
    raise _core.QcoreValueError(
        f"open_checkpoint: {path} has no *{INDEX_SUFFIX}, *.safetensors or *.gguf file, expected one"
    )


@dataclass(frozen=True)
class Sharded:
    """Tensors of one or more safetensors files, which are ``files``."""

    contents: SafetensorsFile
    files: tuple[Path, ...]


def read_safetensors(path: Path) -> Sharded:
    """Return a file's tensors, or those of an index's shards together."""
    if not path.name.endswith(".json"):
        return Sharded(read_header(path), (path,))
    where = f"open_checkpoint: {path}"
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise _core.QcoreValueError(f"{where} has no object 'weight_map', expected one")
    shards: dict[str, SafetensorsFile] = {}
    sections: dict[str, Section] = {}
    metadata: dict[str, str] = {}
    for name, shard in weight_map.items():
        if shard not in shards if isinstance(shard, str) else True:
            shards[shard] = _read_shard(path, name, shard, where)
            metadata |= shards[shard].metadata
        section = shards[shard].sections.get(name)
        if section is None:
            raise _core.QcoreValueError(f"{where} says that {name!r} is in {shard}, which has no such tensor")
        sections[name] = section
    return Sharded(SafetensorsFile(sections, metadata), (path, *(path.parent / shard for shard in shards)))


def join_files(files: Sequence[Path], where: str, read: Callable[[Path], SafetensorsFile] = read_header) -> Sharded:
    """Return the tensors of several files together, each of which ``read`` describes.

    Raises:
        QcoreValueError: two files have a tensor of one name.
    """
    sections: dict[str, Section] = {}
    metadata: dict[str, str] = {}
    for file in files:
        contents = read(file)
        for name, section in contents.sections.items():
            if name in sections:
                raise _core.QcoreValueError(f"{where}: {name!r} is in {sections[name].path} and {file}, expected once")
            sections[name] = section
        metadata |= contents.metadata
    return Sharded(SafetensorsFile(sections, metadata), tuple(files))


def _read_shard(index: Path, name: str, shard: Any, where: str) -> SafetensorsFile:
    at = f"{where}: the shard of {name!r} is {short(shard)}"
    if not isinstance(shard, str) or not shard or set(shard) & set("/\\\0") or shard in (".", ".."):
        raise _core.QcoreValueError(f"{at}, expected the name of a file in the index's own folder")
    if not shard.endswith(".safetensors"):
        raise _core.QcoreValueError(f"{at}, expected a .safetensors file")
    path = index.parent / shard
    if not path.is_file():
        raise _core.QcoreValueError(f"{at}, and there is no such file")
    return read_header(path)


def read_config(folder: Path) -> dict[str, Any] | None:
    """Return config.json of a model's folder, or None."""
    path = folder / "config.json"
    return _read_json(path) if path.is_file() else None


def _read_json(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MOST_HEADER_BYTES:
        raise _core.QcoreValueError(
            f"open_checkpoint: {path} has {size} bytes, expected JSON of {MOST_HEADER_BYTES} at most"
        )
    return parse_json(path.read_bytes(), f"open_checkpoint: {path}")
