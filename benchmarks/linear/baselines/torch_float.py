"""torch.nn.functional.linear in fp32 and bf16."""

from __future__ import annotations

from ... import libraries
from ...implementation import Arithmetic, Array, Bound, Built, Implementation, Scheme, copies_for
from ..weight import Weight


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    torch = libraries.torch()
    linear = torch.nn.functional.linear

    def implementation(name: Arithmetic, dtype: object, item_bytes: int) -> Implementation:
        def build() -> Built:
            nbytes = weight.n * weight.k * item_bytes
            values = torch.from_numpy(weight.values)
            copies = [values.to(dtype, copy=True) for _ in range(copies_for(nbytes, rotated_bytes))]

            def bind(x: Array) -> Bound:
                given = torch.from_numpy(x).to(dtype)
                return Bound(lambda copy: linear(given, copies[copy]), lambda: linear(given, copies[0]).float().numpy())

            return Built(nbytes, len(copies), bind)

        return Implementation(f"torch linear {name}", "torch", Scheme(8 * item_bytes, name, name), build)

    return [implementation("fp32", torch.float32, 4), implementation("bf16", torch.bfloat16, 2)]
