"""Recognizes files of other formats by their first bytes, so that an error can say what a file is."""

from __future__ import annotations

from pathlib import Path

from qcore import _core

KIND_BYTES = 16
"""Number of first bytes that tell a file's kind."""

_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"PK\x03\x04",
        "a zip archive, as torch.save and numpy.savez write it",
        "qcore.save(OUT, torch.load(IN)), or numpy.load, makes a .safetensors file of its tensors",
    ),
    (b"\x80\x02", "a pickle, as torch.save wrote it in old versions", "qcore.save(OUT, torch.load(IN)) converts it"),
    (b"\x93NUMPY", "an array of NumPy", "qcore.save(OUT, {'name': numpy.load(IN)}) converts it"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes it", "save its arrays with qcore.save"),
    (b"\x1f\x8b", "compressed by gzip", "decompress it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "decompress it first"),
    (b"version https://", "a pointer of Git LFS to a file that was not downloaded", "git lfs pull downloads it"),
    (b"<!DOCTYPE", "a web page", "download the file itself"),
    (b"<html", "a web page", "download the file itself"),
)


def check_kind(path: Path, begin: bytes, where: str) -> None:
    """Check that a file may be one of safetensors, GGUF or JSON.

    Args:
        path: the file.
        begin: its first bytes, :data:`KIND_BYTES` of them if there are so many.
        where: begins the text of the error.

    Raises:
        QcoreValueError: it has another format, which the text names together with a way to convert it.
    """
    if begin[8:9] == b"{":  # the header of safetensors, behind its length, which may be any number
        return
    found = next(((kind, way) for magic, kind, way in _KINDS if begin.startswith(magic)), None)
    if found is None and path.suffix.lower() == ".onnx":
        found = "an ONNX model", "qcore.formats.from_onnx makes weights of its arrays"
    if found is None and begin and path.suffix.lower() not in (".json", ".safetensors", ".gguf") and _is_text(begin):
        found = "text", "name the weights' file, or the folder that has it"
    if found is not None:
        raise _core.QcoreValueError(
            f"{where} is {found[0]}, expected a .safetensors or .gguf file, an index of shards, or a folder with one "
            f"of them: {found[1]}"
        )


def _is_text(begin: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in begin)
