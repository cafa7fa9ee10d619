"""`qcore quantize --format onnx`: MatMulNBits nodes in OUT, all arrays in OUT.data beside it.

A checkpoint doesn't say how its layers are connected. Node NAME is therefore on its own, with input NAME.x [M, K] and
output NAME.y [M, N], as in :func:`qcore.formats.to_onnx`; tensors that stay as they are become constants that no node
uses. External data keep the model below protobuf's 2 GB, whatever the size of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qcore import _core, _files
from qcore.formats.checkpoint.byte_ranges import ITEM_BYTES
from qcore.formats.checkpoint.layout import Description, Parts
from qcore.formats.checkpoint.targets.gguf import check_output_file
from qcore.formats.onnx import matmul_nbits as nbits
from qcore.formats.onnx.graph import package
from qcore.quantized_tensor import QuantizedTensor

_ALIGNMENT = 4096
"""ONNX's advice for external data, so that a page holds one array."""
_TYPES = {
    "F64": "DOUBLE",
    "F32": "FLOAT",
    "F16": "FLOAT16",
    "BF16": "BFLOAT16",
    "F8_E4M3": "FLOAT8E4M3FN",
    "F8_E5M2": "FLOAT8E5M2",
    "I64": "INT64",
    "I32": "INT32",
    "I16": "INT16",
    "I8": "INT8",
    "U64": "UINT64",
    "U32": "UINT32",
    "U16": "UINT16",
    "U8": "UINT8",
    "BOOL": "BOOL",
}
_ARRAYS = ("B", "scales")


class OnnxTarget:
    by_rows = True

    def __init__(self, bits: int, block_size: int, scheme: str) -> None:
        if scheme != "symmetric" or block_size < 16 or block_size & (block_size - 1):
            raise _core.QcoreValueError(
                f"quantize: --format onnx has blocks of {block_size} and scheme {scheme}, expected a power of 2 from "
                "16 on and --scheme symmetric: MatMulNBits has integer zero points"
            )
        package()

    def misfit(self, name: str, about: Description) -> str:
        return "" if len(about.shape) == 2 else "onnx: not of two axes"

    def parts(self, name: str, about: Description) -> Parts:
        blocks = (about.shape[0], about.blocks)
        return {f"{name}.B": ("U8", (*blocks, about.block_size * about.bits // 8)), f"{name}.scales": ("F32", blocks)}

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, NDArray[Any]]:
        arrays = nbits.arrays_of(weight, f"quantize: {name}")
        return {f"{name}.{each}": arrays[each] for each in _ARRAYS}

    def container(self, shapes: Parts, weights: Mapping[str, Description]) -> tuple[bytes, dict[str, tuple[int, int]]]:
        for name in weights:
            for value in (f"{name}.x", f"{name}.y"):
                if value in shapes:
                    raise _core.QcoreValueError(
                        f"quantize: tensor {value!r} has the name of an input or output of node {name!r}, expected "
                        f"another: --exclude {name!r}"
                    )
        places, end = {}, 0
        for name, (dtype, shape) in shapes.items():
            nbytes = math.prod(shape) * ITEM_BYTES[dtype]
            places[name] = (end, nbytes)
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return b"", places

    def prepare(self, output: Path) -> Path:
        check_output_file(output)
        return check_output_file(output.with_name(output.name + ".data"))

    def complete(
        self, output: Path, shapes: Parts, weights: Mapping[str, Description], places: dict[str, tuple[int, int]]
    ) -> None:
        data = self.prepare(output).name
        constants = [_constant(name, *shapes[name], data, *places[name]) for name in shapes]
        layers = [
            nbits.Layer(name, (about.shape[0], about.shape[1]), about.bits, about.block_size, _ARRAYS)
            for name, about in weights.items()
        ]
        _files.write_whole(output, nbits.model_of(layers, constants).SerializeToString())


def _constant(name: str, dtype: str, shape: tuple[int, ...], data: str, offset: int, nbytes: int) -> Any:
    onnx = package()
    found = onnx.TensorProto(name=name, data_type=getattr(onnx.TensorProto, _TYPES[dtype]), dims=shape)
    if nbytes == 0:
        found.raw_data = b""  # no stretch of a file
        return found
    found.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", data), ("offset", offset), ("length", nbytes)):
        found.external_data.add(key=key, value=str(value))
    return found
