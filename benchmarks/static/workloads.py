"""The layers that are measured: ResNets' and a MobileNet's."""

from __future__ import annotations

from dataclasses import dataclass

from ..implementation import Implementation, Inputs, Workload
from ..selection import Selection as BaseSelection
from . import baselines, qcore_impl
from .problem import Codes, Layer

LAYERS = (
    Layer((1, 64, 56, 56), (64, 64, 3, 3), padding=1),
    Layer((1, 256, 14, 14), (256, 256, 3, 3), padding=1),
    Layer((8, 128, 28, 28), (128, 128, 3, 3), padding=1),
    Layer((1, 512, 14, 14), (2048, 512, 1, 1)),
    Layer((1, 256, 28, 28), (256, 1, 3, 3), padding=1, groups=256),
    Layer((1, 256, 28, 28), (256, 1, 3, 3), stride=2, padding=1, groups=256),
    Layer((1, 256, 28, 28), (512, 256, 1, 1)),
)
QUICK = (LAYERS[1], LAYERS[4])


@dataclass(frozen=True, kw_only=True)
class Selection(BaseSelection):
    layers: tuple[Layer, ...] = LAYERS


def workloads(selection: Selection) -> list[ConvolutionWorkload]:
    return [
        ConvolutionWorkload(layer.name, layer.weights, [layer.name], layer=layer, selection=selection)
        for layer in selection.layers
        if selection.cases.search(layer.name)
    ]


@dataclass(kw_only=True)
class ConvolutionWorkload(Workload):
    """One layer on one input."""

    layer: Layer
    selection: Selection

    def implementations(self) -> list[Implementation]:
        return self.selection.implementations(
            qcore_impl.implementations, baselines.SOURCES, self.layer, unavailable=self.unavailable
        )

    def inputs(self, case_name: str) -> Inputs:
        codes = Codes(self.layer)
        parameters = {"N": self.layer.x[0], "Ci": self.layer.x[1], "Co": self.layer.y[1], "groups": self.layer.groups}
        return Inputs(case_name, parameters, self.layer.operations, codes, codes.error)
