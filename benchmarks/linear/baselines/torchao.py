"""torchao's quantized linear layers, without compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation, Scheme, copies_for
from ..weight import Weight


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    torch, torchao = libraries.torch(), libraries.torchao()

    def implementation(name: str, config: Callable[[], Any], dtype: Any, scheme: Scheme) -> Implementation:
        def build() -> Built:
            nbytes = weight.n * weight.k + 4 * weight.n
            layers = []
            for _ in range(copies_for(nbytes, rotated_bytes)):
                model = torch.nn.Sequential(torch.nn.Linear(weight.k, weight.n, bias=False)).eval()
                model[0].weight.data.copy_(torch.from_numpy(weight.values))
                model = model.to(dtype)
                torchao.quantize_(model, config())
                layers.append(model[0])

            def bind(x: Array) -> Bound:
                given = torch.from_numpy(x).to(dtype)
                return Bound(lambda copy: layers[copy](given), lambda: layers[0](given).float().numpy())

            return Built(nbytes, len(layers), bind)

        return Implementation(f"torchao {name}", "torch", scheme, build)

    def dynamic() -> Any:
        return torchao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)

    def weight_only() -> Any:
        return torchao.Int8WeightOnlyConfig(set_inductor_config=False)

    return [
        implementation("int8 dynamic", dynamic, torch.float32, Scheme(8, "int8 per row", "int8")),
        implementation("int8 weight only", weight_only, torch.bfloat16, Scheme(8, "bf16", "bf16")),
    ]
