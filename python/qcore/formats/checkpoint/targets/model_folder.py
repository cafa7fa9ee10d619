"""`qcore quantize IN OUT` for folders of transformers: OUT has what from_pretrained needs beside the weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qcore import _core, _files
from qcore.formats.checkpoint import layout
from qcore.formats.checkpoint.files.folder import read_config
from qcore.formats.checkpoint.files.safetensors import header_bytes
from qcore.formats.checkpoint.layout import Description, Parts
from qcore.quantized_tensor import QuantizedTensor

FORMATS = ("qcore", "awq", "gptq")
WEIGHTS = "model.safetensors"
_FILES = (".safetensors", ".gguf", ".onnx")
_COPIED = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken", ".bpe")
_NOT_COPIED = ("config.json", "quantize_config.json", "quant_config.json")


def is_model_folder(path: Path) -> bool:
    """Return whether a path is a folder with a model of transformers.

    Args:
        path: a file or folder.
    """
    if not path.is_dir():
        return False
    config = read_config(path) or {}
    return "model_type" in config


def becomes_folder(source: Path, output: Path, format: str) -> bool:
    """Return whether ``qcore quantize`` writes a folder of transformers.

    Args:
        source: what is quantized.
        output: what is written.
        format: of the output.
    """
    return format in FORMATS and output.suffix not in _FILES and is_model_folder(source)


def copied_files(source: Path) -> Iterator[Path]:
    """Yield the files that are copied, relative to the folder: tokenizer, generation, code, parts of pipelines.

    Args:
        source: the folder.
    """
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        hidden = any(part.startswith(".") for part in relative.parts)
        if not path.is_file() or hidden or len(relative.parts) > 2 or path.name.endswith(".index.json"):
            continue
        if len(relative.parts) == 1 and path.name in _NOT_COPIED:
            continue
        if path.suffix in _COPIED or path.name.upper().startswith(("LICENSE", "NOTICE", "COPYING")):
            yield relative


def quantization_config(
    *, format: str, bits: int, block_size: int, scheme: str, method: str, scale_dtype: str, left: Sequence[str]
) -> dict[str, Any]:
    """Return what config.json says of the weights.

    Args:
        format: of the folder.
        bits, block_size, scheme, method, scale_dtype: as they were quantized.
        left: names of modules that could have been quantized and stay in floating point.
    """
    if format == "awq":
        found = {"quant_method": "awq", "bits": bits, "group_size": block_size, "version": "gemm", "zero_point": True}
        return found | {"modules_to_not_convert": list(left) or None}
    if format == "gptq":
        found = {"quant_method": "gptq", "bits": bits, "group_size": block_size, "sym": True, "desc_act": False}
        found |= {"checkpoint_format": "gptq", "lm_head": "lm_head" not in left, "true_sequential": True}
        # The loaders of gptqmodel and vLLM read "-:" as "all but the modules that match".
        escaped = [name.replace(".", "\\.") for name in left if name != "lm_head"]
        return found | ({"dynamic": {f"-:^{name}$": {} for name in escaped}} if escaped else {})
    return {
        "quant_method": "qcore",
        "format": layout.FORMAT,
        "bits": bits,
        "block_size": block_size,
        "scheme": scheme,
        "method": method,
        "scale_dtype": scale_dtype,
        "modules_to_not_convert": list(left) or None,
    }


class ModelFolderTarget:
    """A folder with model.safetensors, config.json and the other files of the input.

    Args:
        inner: the layout of the weights.
        source: the input's folder.
        values: ``quantization_config`` of config.json.
    """

    def __init__(self, inner: Any, source: str, values: dict[str, Any]) -> None:
        self._inner, self._source, self._values = inner, Path(source), values
        self.by_rows: bool = inner.by_rows

    def misfit(self, name: str, about: Description) -> str:
        """Return why the layout can't hold a weight; empty if it can."""
        reason: str = self._inner.misfit(name, about)
        return reason

    def parts(self, name: str, about: Description) -> Parts:
        """Tensors of the file, by name."""
        found: Parts = self._inner.parts(name, about)
        return found

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, NDArray[Any]]:
        """Return their values."""
        found: dict[str, NDArray[Any]] = self._inner.encode(name, weight)
        return found

    def container(self, shapes: Parts, weights: Mapping[str, Description]) -> tuple[bytes, dict[str, tuple[int, int]]]:
        """Return the file's beginning, as transformers writes it too."""
        metadata = {"format": "pt"}
        if self._values["quant_method"] == "qcore":
            described = layout.metadata_of(weights)
            metadata |= {layout.KEY: described["format"], "weights": described["weights"]}
        return header_bytes(shapes, metadata)

    def prepare(self, output: Path) -> Path:
        """Make the folder; a config.json of an earlier run goes first, since it says that the folder is whole."""
        if output.exists() and not output.is_dir():
            raise _core.QcoreValueError(
                f"quantize: {output} is a file, expected a folder: the input is a model's folder"
            )
        if output.exists() and output.samefile(self._source):
            raise _core.QcoreValueError(f"quantize: {output} is the input, expected another folder")
        output.mkdir(exist_ok=True)
        (output / "config.json").unlink(missing_ok=True)
        return output / WEIGHTS

    def complete(
        self, output: Path, shapes: Parts, weights: Mapping[str, Description], places: dict[str, tuple[int, int]]
    ) -> None:
        """Copy the other files; config.json comes last."""
        for relative in copied_files(self._source):
            target = output / relative
            target.parent.mkdir(exist_ok=True)
            with open(self._source / relative, "rb") as given, _files.whole_file(target) as file:
                shutil.copyfileobj(given, file)
        config = read_config(self._source) or {}
        text = json.dumps(config | {"quantization_config": self._values}, indent=2) + "\n"
        _files.write_whole(output / "config.json", text.encode())
