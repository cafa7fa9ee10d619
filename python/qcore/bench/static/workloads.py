"""The layers that are measured: ResNets' and a MobileNet's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .. import libraries
from ..contender import OURS, Contender, Inputs, Workload
from . import ours, peers
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


@dataclass(frozen=True)
class Selection:
    """What of all this is wanted; patterns are searched for in names."""

    layers: tuple[Layer, ...] = LAYERS
    cases: re.Pattern[str] = re.compile("")
    ours: re.Pattern[str] = re.compile("")
    peers: re.Pattern[str] | None = re.compile("")

    def takes(self, contender: Contender) -> bool:
        pattern = self.ours if contender.library == OURS else self.peers
        return pattern is not None and pattern.search(contender.name) is not None


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

    def contenders(self) -> list[Contender]:
        sources: list[tuple[str, Callable[[], list[Contender]]]] = [(OURS, lambda: ours.contenders(self.layer))]
        if self.selection.peers is not None:
            sources += [
                (name, lambda source=source: source(self.layer))  # type: ignore[misc]
                for name, source in peers.SOURCES.items()
            ]
        found: list[Contender] = libraries.gather(sources, self.unavailable)
        return [contender for contender in found if self.selection.takes(contender)]

    def inputs(self, case_name: str) -> Inputs:
        codes = Codes(self.layer)
        parameters = {"N": self.layer.x[0], "Ci": self.layer.x[1], "Co": self.layer.y[1], "groups": self.layer.groups}
        return Inputs(case_name, parameters, self.layer.operations, codes, codes.error)
