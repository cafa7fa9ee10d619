"""torch's weight-only kernels, with bf16 activations (with fp32 ones they are scalar loops)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation, Scheme, copies_for
from ..weight import Weight


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    torch = libraries.torch()
    int4 = [_int4(torch, block_size, weight, rotated_bytes) for block_size in (32, 64, 128)]
    return [*int4, _int8(torch, weight, rotated_bytes)]


def _bound(torch: Any, x: Array, linear: Any, packed: list[Any]) -> Bound:
    given = torch.from_numpy(x).bfloat16()
    return Bound(lambda copy: linear(given, packed[copy]), lambda: linear(given, packed[0]).float().numpy())


def _int4(torch: Any, block_size: int, weight: Weight, rotated_bytes: int) -> Implementation:
    def build() -> Built:
        blocks = weight.per_block(4, block_size, offsets=True)
        # The kernel's weight is (code - 8) * scale + zero.
        zeros = (8 - blocks.zero_points.astype(np.float32)) * blocks.scales
        parameters = np.stack([blocks.scales, zeros], axis=-1).transpose(1, 0, 2)
        scales_and_zeros = torch.from_numpy(np.ascontiguousarray(parameters)).bfloat16()
        nbytes = weight.n * weight.k // 2 + 2 * parameters.size
        codes = torch.from_numpy(blocks.codes.reshape(weight.n, weight.k).astype(np.int32))
        pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        first = pack(codes, 1)
        packed = [first.clone() for _ in range(copies_for(nbytes, rotated_bytes))]

        def linear(x: Any, codes: Any) -> Any:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(x, codes, block_size, scales_and_zeros)

        return Built(nbytes, len(packed), lambda x: _bound(torch, x, linear, packed))

    scheme = Scheme(4, "bf16", "bf16", block_size, offsets=True)
    return Implementation(f"torch _weight_int4pack_mm g{block_size}", "torch", scheme, build)


def _int8(torch: Any, weight: Weight, rotated_bytes: int) -> Implementation:
    def build() -> Built:
        codes, scales = (torch.from_numpy(part) for part in weight.per_channel())
        rounded = scales.bfloat16()
        nbytes = weight.n * weight.k + 2 * weight.n
        packed = [codes.clone() for _ in range(copies_for(nbytes, rotated_bytes))]

        def linear(x: Any, codes: Any) -> Any:
            return torch._weight_int8pack_mm(x, codes, rounded)

        return Built(nbytes, len(packed), lambda x: _bound(torch, x, linear, packed))

    return Implementation("torch _weight_int8pack_mm", "torch", Scheme(8, "bf16", "bf16"), build)
