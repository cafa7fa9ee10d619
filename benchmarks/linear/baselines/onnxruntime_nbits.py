"""ONNX Runtime's MatMulNBits: 4 and 8 bits per block, fp32 scales and activations.

accuracy_level 0 multiplies in fp32, 4 lets the kernel quantize activations to int8 per block.
"""

from __future__ import annotations

from itertools import product

from ... import libraries
from ...implementation import Array, Built, Implementation, Scheme, copies_for
from ..weight import Weight, pairs
from .onnxruntime_models import model, sessions


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    libraries.onnxruntime()
    forms = [(bits, block_size, level, False) for bits, block_size, level in product((4, 8), (32, 64, 128), (4, 0))]
    forms += [(4, block_size, 4, True) for block_size in (32, 64, 128)]
    return [implementation(weight, rotated_bytes, *form) for form in forms]


def implementation(
    weight: Weight, rotated_bytes: int, bits: int, block_size: int, level: int, offsets: bool
) -> Implementation:
    def build() -> Built:
        constants = _constants(weight, bits, block_size, offsets)
        _, onnx = libraries.onnxruntime()
        node = onnx.helper.make_node(
            "MatMulNBits", ["X", *constants], ["Y"], domain="com.microsoft",
            N=weight.n, K=weight.k, bits=bits, block_size=block_size, accuracy_level=level,
        )  # fmt: skip
        nbytes = sum(values.nbytes for values in constants.values())
        return sessions(model([node], weight, constants), weight, nbytes, copies_for(nbytes, rotated_bytes))

    name = f"ort MatMulNBits {bits}b g{block_size}{' zp' if offsets else ''} acc{level}"
    scheme = (
        Scheme(bits, "int8 per block", "int8", block_size, offsets)
        if level == 4
        else Scheme(bits, "fp32", "fp32", block_size, offsets)
    )
    return Implementation(name, "onnxruntime", scheme, build)


def _constants(weight: Weight, bits: int, block_size: int, offsets: bool) -> dict[str, Array]:
    blocks = weight.per_block(bits, block_size, offsets)
    constants = {"codes": blocks.packed_codes() if bits == 4 else blocks.codes, "scales": blocks.scales.reshape(-1)}
    if offsets:
        zeros = blocks.zero_points
        constants["zeros"] = (pairs(zeros) if bits == 4 else zeros).reshape(-1)
    return constants
