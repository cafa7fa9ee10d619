"""The layers and sequences that are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qcore.gru.formats import Pipeline

from ..implementation import Implementation, Inputs, Workload
from ..selection import Selection as BaseSelection
from . import baselines, qcore_impl
from .problem import Cell, Layer, Sequences

STEPS = (1, 50, 200)  # T
BATCHES = (1, 8, 64)  # B
HIDDEN = (128, 256, 512)  # H
BITS = (8, 16)
PIPELINES: tuple[Pipeline, ...] = ("fused", "staged")


@dataclass(frozen=True, kw_only=True)
class Selection(BaseSelection):
    cell: Cell = "gru"
    steps: Sequence[int] = STEPS
    batches: Sequence[int] = BATCHES
    hidden: Sequence[int] = HIDDEN
    inputs: int = 128  # C
    streaming: bool = True
    bits: Sequence[int] = BITS
    pipelines: Sequence[Pipeline] = PIPELINES[:1]

    def widths(self) -> list[tuple[int, Pipeline | None]]:
        """Return bits and pipelines; an LSTM has one pipeline without a name."""
        pipelines = (None,) if self.cell == "lstm" else self.pipelines
        return [(bits, pipeline) for bits in self.bits for pipeline in pipelines]


QUICK = Selection(steps=(1, 20), batches=(1, 8), hidden=(128,))


def workloads(selection: Selection) -> list[RecurrentWorkload]:
    """Return the workloads with at least one case."""
    made = (
        RecurrentWorkload.of(Layer(selection.inputs, hidden, selection.cell), selection) for hidden in selection.hidden
    )
    return [workload for workload in made if workload.case_names]


@dataclass(kw_only=True)
class RecurrentWorkload(Workload):
    """One layer, on sequences of several lengths and batches, and on a stream."""

    layer: Layer
    selection: Selection
    _sequences: dict[str, tuple[int, int, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, layer: Layer, selection: Selection) -> RecurrentWorkload:
        shapes = [(1, 1, True)] if selection.streaming else []
        shapes += [(steps, batch, False) for steps in selection.steps for batch in selection.batches]
        named = {
            f"{layer.name} {'step' if streamed else f'T={steps}'} B={batch}": (steps, batch, streamed)
            for steps, batch, streamed in shapes
        }
        named = {name: shape for name, shape in named.items() if selection.cases.search(name)}
        return cls(layer.name, layer.weights, list(named), layer=layer, selection=selection, _sequences=named)

    def implementations(self) -> list[Implementation]:
        return self.selection.implementations(
            lambda layer: qcore_impl.implementations(layer, self.selection.widths()),
            baselines.SOURCES,
            self.layer,
            unavailable=self.unavailable,
        )

    def inputs(self, case_name: str) -> Inputs:
        steps, batch, streamed = self._sequences[case_name]
        data = Sequences(self.layer, steps, batch, streamed)
        parameters = {"T": steps, "B": batch, "C": self.layer.inputs, "H": self.layer.hidden, "step": int(streamed)}
        return Inputs(case_name, parameters, data.operations, data, data.error)
