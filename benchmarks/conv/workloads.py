"""The layers that are measured: those of `qcore bench static` with stride 1."""

from __future__ import annotations

from dataclasses import dataclass

from ..implementation import Implementation, Inputs
from ..static import workloads as static
from ..static.workloads import LAYERS as STATIC_LAYERS
from ..static.workloads import ConvolutionWorkload, Selection
from . import baselines, qcore_impl
from .problem import Floats

LAYERS = tuple(layer for layer in STATIC_LAYERS if layer.stride == 1)
QUICK = static.QUICK


def workloads(selection: Selection) -> list[BlockWorkload]:
    return [
        BlockWorkload(layer.name, layer.weights, [layer.name], layer=layer, selection=selection)
        for layer in selection.layers
        if selection.cases.search(layer.name)
    ]


@dataclass(kw_only=True)
class BlockWorkload(ConvolutionWorkload):
    """One layer on one input, with per-block weights."""

    def implementations(self) -> list[Implementation]:
        return self.selection.implementations(
            qcore_impl.implementations, baselines.SOURCES, self.layer, unavailable=self.unavailable
        )

    def inputs(self, case_name: str) -> Inputs:
        floats = Floats(self.layer)
        parameters = {"N": self.layer.x[0], "Ci": self.layer.x[1], "Co": self.layer.y[1], "groups": self.layer.groups}
        return Inputs(case_name, parameters, self.layer.operations, floats, floats.error)
