"""The digits model: two convolutions, a GRU that reads the feature map row by row, and linear layers."""

from __future__ import annotations

from collections.abc import Mapping

from .data import Floats
from .layers import Calibrated, Layer, rows_as_steps
from .operators import Operators


class Model:
    """[B, 1, 8, 8] images -> [B, 10] logits: a list of layers, applied in turn."""

    def __init__(self, weights: Mapping[str, Floats], operators: Operators) -> None:
        def parameters(name: str) -> tuple[Floats, Floats]:
            return weights[f"{name}.weight"], weights[f"{name}.bias"]

        self.layers: list[Layer] = [
            operators.conv2d(*parameters("conv1"), padding=1, with_relu=True),  # [B, 32, 8, 8]
            operators.conv2d(*parameters("conv2"), padding=1, with_relu=True),  # [B, 32, 8, 8]
            rows_as_steps,  # [B, 8, 256]
            operators.linear(*parameters("row"), with_relu=True),  # [B, 8, 64]
            operators.gru(*(weights[f"gru.{part}_l0"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))),
            operators.linear(*parameters("hidden"), with_relu=True),  # [B, 64]
            operators.linear(*parameters("logits")),  # [B, 10]
        ]

    def calibrate(self, images: Floats) -> None:
        """Run samples through the model, so that layers which need them see what would reach them."""
        x = images
        for layer in self.layers:
            if isinstance(layer, Calibrated):
                layer.calibrate(x)
            x = layer(x)

    def __call__(self, images: Floats) -> Floats:
        x = images
        for layer in self.layers:
            x = layer(x)
        return x
