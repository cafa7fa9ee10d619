"""Base of the formats that `qcore quantize` writes: how a weight becomes parts of a file, and what stands beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from qcore import _checks, _core, _files
from qcore.formats.awq import to_awq
from qcore.formats.checkpoint import layout
from qcore.formats.checkpoint.files.safetensors import header_bytes
from qcore.formats.checkpoint.layout import Description, Parts
from qcore.formats.checkpoint.targets.gguf import GgufTarget, check_output_file
from qcore.formats.checkpoint.targets.onnx import OnnxTarget
from qcore.formats.gptq import to_gptq
from qcore.quantized_tensor import QuantizedTensor

FORMATS = ("qcore", "awq", "gptq", "gguf", "onnx")
Places = dict[str, tuple[int, int]]
Container = tuple[bytes, Places]


class Target(Protocol):
    """A layout of quantized weights."""

    by_rows: bool
    """Rows [N] can be encoded in pieces, one after the other."""

    def misfit(self, name: str, about: Description) -> str:
        """Return why the layout can't hold a weight; empty if it can."""

    def parts(self, name: str, about: Description) -> Parts:
        """Return the tensors of the file, by name."""

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, NDArray[Any]]:
        """Return their values, for all rows or for a piece of them."""

    def container(self, shapes: Parts, weights: Mapping[str, Description]) -> Container:
        """Return the file's beginning, and (offset, bytes) of every part."""

    def prepare(self, output: Path) -> Path:
        """Make what stands beside the file, and return the file's name."""

    def complete(self, output: Path, shapes: Parts, weights: Mapping[str, Description], places: Places) -> None:
        """Make what refers to the file, which is there now."""


class QcoreTarget:
    by_rows = True

    def __init__(self, scale_dtype: str) -> None:
        self._dtype = "F16" if scale_dtype == "float16" else "F32"

    def misfit(self, name: str, about: Description) -> str:
        return ""

    def parts(self, name: str, about: Description) -> Parts:
        return {f"{name}.{part}": value for part, value in about.parts(self._dtype, self._dtype).items()}

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, NDArray[Any]]:
        return {f"{name}.{part}": values for part, values in layout.encode(weight, self._dtype, self._dtype).items()}

    def container(self, shapes: Parts, weights: Mapping[str, Description]) -> Container:
        return header_bytes(shapes, layout.metadata_of(weights))

    def prepare(self, output: Path) -> Path:
        return check_output_file(output)

    def complete(self, output: Path, shapes: Parts, weights: Mapping[str, Description], places: Places) -> None:
        pass


class AwqTarget:
    """A folder with model.safetensors, its layers in AWQ's "gemm" order, and config.json."""

    by_rows = False  # its words run along N

    def __init__(self, bits: int, block_size: int, scheme: str, scale_dtype: str) -> None:
        given = (bits, scheme, scale_dtype)
        if given != (4, "symmetric", "float16"):
            raise _core.QcoreValueError(
                f"quantize: --format awq has {bits} bits, scheme {scheme}, scale dtype {scale_dtype}, expected "
                "--bits 4 --scheme symmetric --scale-dtype float16: AWQ's zero points are integers"
            )
        self._block_size = block_size

    def misfit(self, name: str, about: Description) -> str:
        if not name.endswith(".weight") or len(about.shape) != 2:
            return "awq: no NAME.weight of two axes"
        if about.shape[0] % 8:
            return f"awq: N = {about.shape[0]} is no multiple of 8"
        if about.shape[1] % self._block_size:
            return f"awq: K = {about.shape[1]} is no multiple of {self._block_size}"
        return ""

    def parts(self, name: str, about: Description) -> Parts:
        layer, (n, k) = name.removesuffix(".weight"), about.shape
        return {
            f"{layer}.qweight": ("I32", (k, n // 8)),
            f"{layer}.scales": ("F16", (about.blocks, n)),
            f"{layer}.qzeros": ("I32", (about.blocks, n // 8)),
        }

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, NDArray[Any]]:
        layer = name.removesuffix(".weight")
        qweight, scales, qzeros = to_awq(weight)
        return {f"{layer}.qweight": qweight, f"{layer}.scales": scales, f"{layer}.qzeros": qzeros}

    def container(self, shapes: Parts, weights: Mapping[str, Description]) -> Container:
        return header_bytes(shapes, {"format": "pt"})

    def prepare(self, output: Path) -> Path:
        if output.exists() and not output.is_dir():
            raise _core.QcoreValueError(f"quantize: {output} is a file, expected a folder for --format awq")
        output.mkdir(exist_ok=True)
        file, config = output / "model.safetensors", output / "config.json"
        packing = {"quant_method": "awq", "bits": 4, "group_size": self._block_size, "version": "gemm"}
        content = {"quantization_config": packing | {"zero_point": True}}
        if config.exists() and json.loads(config.read_bytes()) != content:
            raise _core.QcoreValueError(f"quantize: {config} exists and says something else, expected an empty folder")
        _files.write_whole(config, (json.dumps(content, indent=2) + "\n").encode())
        return file

    def complete(self, output: Path, shapes: Parts, weights: Mapping[str, Description], places: Places) -> None:
        pass


class GptqTarget:
    """Layers in GPTQ's order, version 1, groups in the order of k."""

    by_rows = False  # its zero points run along N

    def __init__(self, bits: int, block_size: int, scheme: str, scale_dtype: str) -> None:
        if (scheme, scale_dtype) != ("symmetric", "float16"):
            raise _core.QcoreValueError(
                f"quantize: --format gptq has scheme {scheme}, scale dtype {scale_dtype}, expected --scheme symmetric "
                "--scale-dtype float16: GPTQ's zero points are integers"
            )
        self._block_size, self._per_word = block_size, 32 // bits

    def misfit(self, name: str, about: Description) -> str:
        if not name.endswith(".weight") or len(about.shape) != 2:
            return "gptq: no NAME.weight of two axes"
        if about.shape[0] % self._per_word:
            return f"gptq: N = {about.shape[0]} is no multiple of {self._per_word}"
        if about.shape[1] % self._block_size or about.shape[1] % self._per_word:
            return f"gptq: K = {about.shape[1]} is no multiple of {self._block_size} and {self._per_word}"
        return ""

    def parts(self, name: str, about: Description) -> Parts:
        layer, (n, k) = name.removesuffix(".weight"), about.shape
        return {
            f"{layer}.qweight": ("I32", (k // self._per_word, n)),
            f"{layer}.scales": ("F16", (about.blocks, n)),
            f"{layer}.qzeros": ("I32", (about.blocks, n // self._per_word)),
            f"{layer}.g_idx": ("I32", (k,)),
        }

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, NDArray[Any]]:
        layer = name.removesuffix(".weight")
        qweight, scales, qzeros, g_idx = to_gptq(weight, version=1)
        values: dict[str, NDArray[Any]] = {"qweight": qweight, "scales": scales, "qzeros": qzeros, "g_idx": g_idx}
        return {f"{layer}.{part}": array for part, array in values.items()}

    def container(self, shapes: Parts, weights: Mapping[str, Description]) -> Container:
        return header_bytes(shapes, {"format": "pt"})

    def prepare(self, output: Path) -> Path:
        raise _core.QcoreValueError(
            f"quantize: --format gptq of what is no folder of transformers, expected a folder with config.json as IN "
            f"and a folder as OUT, which is {output}"
        )

    def complete(self, output: Path, shapes: Parts, weights: Mapping[str, Description], places: Places) -> None:
        pass


def target(*, format: str, bits: int, block_size: int, scheme: str, scale_dtype: str) -> Target:
    """Return the layout of that name.

    Raises:
        QcoreValueError: there is none, it can't hold such weights, or its codec is missing.
    """
    _checks.choice(format, dict.fromkeys(FORMATS), "quantize: format")
    if format == "qcore":
        return QcoreTarget(scale_dtype)
    if format == "awq":
        return AwqTarget(bits, block_size, scheme, scale_dtype)
    if format == "gptq":
        return GptqTarget(bits, block_size, scheme, scale_dtype)
    if format == "gguf":
        return GgufTarget(bits, block_size, scheme, scale_dtype)
    return OnnxTarget(bits, block_size, scheme)
