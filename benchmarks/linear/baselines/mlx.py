"""mlx on the CPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation, Scheme, copies_for
from ..weight import Weight


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    mlx = libraries.mlx()
    return [_implementation(mlx, weight, rotated_bytes, bits, size) for bits, size in product((4, 8), (32, 64, 128))]


def _implementation(mlx: Any, weight: Weight, rotated_bytes: int, bits: int, block_size: int) -> Implementation:
    def build() -> Built:
        values = mlx.array(weight.values)
        nbytes = weight.n * weight.k * bits // 8 + weight.n * weight.k // block_size * 8
        packed = []
        for _ in range(copies_for(nbytes, rotated_bytes)):
            packed.append(mlx.quantize(values, group_size=block_size, bits=bits))
            mlx.eval(*packed[-1])

        def bind(x: Array) -> Bound:
            given = mlx.array(x)

            def run(copy: int) -> Any:
                codes, scales, biases = packed[copy]
                y = mlx.quantized_matmul(
                    given, codes, scales=scales, biases=biases, transpose=True, group_size=block_size, bits=bits
                )
                mlx.eval(y)
                return y

            return Bound(run, lambda: np.array(run(0)))

        return Built(nbytes, len(packed), bind)

    scheme = Scheme(bits, "fp32", "fp32", block_size, offsets=True)
    return Implementation(f"mlx quantized_matmul {bits}b g{block_size}", "mlx", scheme, build)
