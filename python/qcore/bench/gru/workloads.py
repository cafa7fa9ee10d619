"""The layers and sequences that are measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .. import libraries
from ..contender import OURS, Contender, Inputs, Workload
from . import ours, peers
from .problem import Layer, Sequences

STEPS = (1, 50, 200)  # T
BATCHES = (1, 8, 64)  # B
HIDDEN = (128, 256, 512)  # H
BITS = (8, 16)
PIPELINES = ("fused", "staged")


@dataclass(frozen=True)
class Selection:
    """What of all this is wanted; patterns are searched for in names."""

    steps: Sequence[int] = STEPS
    batches: Sequence[int] = BATCHES
    hidden: Sequence[int] = HIDDEN
    inputs: int = 128  # C
    streaming: bool = True
    bits: Sequence[int] = BITS
    pipelines: Sequence[str] = PIPELINES[:1]
    cases: re.Pattern[str] = re.compile("")
    ours: re.Pattern[str] = re.compile("")
    peers: re.Pattern[str] | None = re.compile("")

    def takes(self, contender: Contender) -> bool:
        pattern = self.ours if contender.library == OURS else self.peers
        return pattern is not None and pattern.search(contender.name) is not None

    def widths(self) -> list[tuple[int, str]]:
        return [(bits, pipeline) for bits in self.bits for pipeline in self.pipelines]


QUICK = Selection(steps=(1, 20), batches=(1, 8), hidden=(128,))


def workloads(selection: Selection) -> list[GruWorkload]:
    """Those with at least one case."""
    made = (GruWorkload.of(Layer(selection.inputs, hidden), selection) for hidden in selection.hidden)
    return [workload for workload in made if workload.case_names]


@dataclass(kw_only=True)
class GruWorkload(Workload):
    """One layer, on sequences of several lengths and batches, and on a stream."""

    layer: Layer
    selection: Selection
    _sequences: dict[str, tuple[int, int, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, layer: Layer, selection: Selection) -> GruWorkload:
        shapes = [(1, 1, True)] if selection.streaming else []
        shapes += [(steps, batch, False) for steps in selection.steps for batch in selection.batches]
        named = {
            f"{layer.name} {'step' if streamed else f'T={steps}'} B={batch}": (steps, batch, streamed)
            for steps, batch, streamed in shapes
        }
        named = {name: shape for name, shape in named.items() if selection.cases.search(name)}
        return cls(layer.name, layer.weights, list(named), layer=layer, selection=selection, _sequences=named)

    def contenders(self) -> list[Contender]:
        sources: list[tuple[str, Callable[[], list[Contender]]]] = [
            (OURS, lambda: ours.contenders(self.layer, self.selection.widths()))
        ]
        if self.selection.peers is not None:
            sources += [
                (name, lambda source=source: source(self.layer))  # type: ignore[misc]
                for name, source in peers.SOURCES.items()
            ]
        found: list[Contender] = libraries.gather(sources, self.unavailable)
        return [contender for contender in found if self.selection.takes(contender)]

    def inputs(self, case_name: str) -> Inputs:
        steps, batch, streamed = self._sequences[case_name]
        data = Sequences(self.layer, steps, batch, streamed)
        parameters = {"T": steps, "B": batch, "C": self.layer.inputs, "H": self.layer.hidden, "step": int(streamed)}
        return Inputs(case_name, parameters, data.operations, data, data.error)
