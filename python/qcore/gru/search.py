"""Mixed widths under a size budget: the tensors whose widening pays, found by measured error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from qcore import _core
from qcore._recurrent.direction import Doubles
from qcore.gru import float_cell
from qcore.gru.core import GruCore
from qcore.gru.formats import TENSORS, Config
from qcore.gru.weights import GruWeights

if TYPE_CHECKING:
    from rich.table import Table

Progress = Callable[[int, int], None]
"""Called with the number of configurations tried so far and the most there can be."""

LEAST_GAIN = 0.1
_WIDEST = {"biases": 32}


@dataclasses.dataclass(frozen=True)
class Trial:
    """One configuration that was measured.

    Args:
        round: 0 is the start; then one tensor more is widened in each round, or one less, to see whether it still pays.
        tensor: which was widened (or narrowed again) in this trial; "" at the start.
        widths: all that are not the preset's.
        size: bytes, as the budget counts them.
        error: mean squared error of the outputs against float64.
        chosen: whether the search went on from here.
    """

    round: int
    tensor: str
    widths: dict[str, int]
    size: int
    error: float
    chosen: bool


@dataclasses.dataclass(frozen=True)
class Search:
    """Result of :meth:`Calibrator.search`, with all configurations that were tried.

    Args:
        config: the one that was chosen.
        size: its bytes, as the budget counts them.
        error: its mean squared error of the outputs against float64.
        budget: what was given.
        tried: every configuration that was measured, in order.
    """

    config: Config
    size: int
    error: float
    budget: int
    tried: tuple[Trial, ...]

    def to_json(self) -> str:
        """Return all of it as JSON."""
        values = {
            "budget": self.budget,
            "size": self.size,
            "error": self.error,
            "config": json.loads(self.config.to_json()),
            "tried": [dataclasses.asdict(trial) for trial in self.tried],
        }
        return json.dumps(values, indent=2) + "\n"

    def table(self) -> Table:
        """Make a table for a rich console."""
        from rich import box
        from rich.table import Table

        title = f"widths within {self.budget:,} bytes: {_named(self.config.widths)}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("round", justify="right")
        table.add_column("widths")
        for heading in ("bytes", "mean squared error", "of the start"):
            table.add_column(heading, justify="right", no_wrap=True)
        start = self.tried[0].error
        for trial in self.tried:
            share = f"{trial.error / start:.3f}" if start else "-"
            cells = [str(trial.round), _named(trial.widths), f"{trial.size:,}", f"{trial.error:.3e}", share]
            table.add_row(*cells, style="bold" if trial.chosen else None)
        return table


def _named(widths: Any) -> str:
    return ", ".join(f"{name} {bits}" for name, bits in widths.items()) or "the preset's"


def size_of(weights: GruWeights, config: Config, state_rows: int = 0) -> int:
    """Return the bytes of weights, biases and states of `state_rows` rows: 1 for up to 8 bits, 2 to 16, 4 to 32."""

    def each(name: str) -> int:
        bits = config.width(name)
        return 1 if bits <= 8 else 2 if bits <= 16 else 4

    directions = [direction for layer in weights.layers for direction in layer]
    matrices = sum(int(direction.w.size + direction.r.size) for direction in directions)
    vectors = sum(int(direction.bx.size + direction.br.size) for direction in directions)
    states = state_rows * sum(int(direction.hidden_size) for direction in directions)
    return matrices * each("weights") + vectors * each("biases") + states * each("h")


def search(
    weights: GruWeights,
    finish: Callable[[Config], GruCore],
    budget: int,
    x: Doubles,
    h0: Doubles | None,
    config: Config,
    state_rows: int,
    least_gain: float,
    target: float,
    progress: Progress | None,
) -> Search:
    """Search as :meth:`Calibrator.search`; x [T, B, C], and ``finish`` makes the quantized GRU of a config."""
    exact = float_outputs(weights, x, h0)
    given = np.ascontiguousarray(x.transpose(1, 0, 2) if weights.batch_first else x, np.float32)
    states = None if h0 is None else h0.astype(np.float32)
    candidates = [name for name in (*TENSORS, "weights", "biases") if config.width(name) < _WIDEST.get(name, 16)]
    most = 1 + len(candidates) * (len(candidates) + 1) // 2 + len(candidates)
    tried: list[Trial] = []

    def attempt(number: int, tensor: str, widths: dict[str, int]) -> Trial:
        made = dataclasses.replace(config, widths=widths)
        y = finish(made)(given, states)[0].astype(np.float64)
        y = y.transpose(1, 0, 2) if weights.batch_first else y
        error = float(np.square(y - exact).mean())
        trial = Trial(number, tensor, widths, size_of(weights, made, state_rows), error, False)
        tried.append(trial)
        if progress is not None:
            progress(len(tried), most)
        return trial

    def choose(trial: Trial) -> Trial:
        chosen = dataclasses.replace(trial, chosen=True)
        tried[tried.index(trial)] = chosen
        return chosen

    def fits(widths: dict[str, int]) -> bool:
        return size_of(weights, dataclasses.replace(config, widths=widths), state_rows) <= budget

    smallest = size_of(weights, config, state_rows)
    if smallest > budget:
        raise _core.QcoreValueError(
            f"gru search: budget is {budget} bytes, expected at least the {smallest} of the config it starts from"
        )
    best = choose(attempt(0, "", dict(config.widths)))
    number, widened = 0, list[str]()
    while best.error > target:
        number += 1
        trials = []
        for name in candidates:
            widths = best.widths | {name: _WIDEST.get(name, 16)}
            if name not in widened and fits(widths):
                trials.append(attempt(number, name, widths))
        found = min(trials, key=lambda trial: (trial.error, trial.size), default=None)
        if found is None or found.error > (1 - least_gain) * best.error:
            break
        best = choose(found)
        widened.append(found.tensor)
    # A later change may have made an earlier one superfluous.
    for name in widened[:-1]:
        number += 1
        widths = {key: bits for key, bits in best.widths.items() if key != name}
        if name in config.widths:
            widths[name] = config.widths[name]
        narrower = attempt(number, name, widths)
        if narrower.error <= max(target, best.error / (1 - least_gain)):
            best = choose(narrower)
    return Search(dataclasses.replace(config, widths=best.widths), best.size, best.error, budget, tuple(tried))


def float_outputs(weights: GruWeights, x: Doubles, h0: Doubles | None) -> Doubles:
    """Return the last layer's y [T, B, directions * H] in float64."""
    for number, layer in enumerate(weights.layers):
        outputs = []
        for side, direction in enumerate(layer):
            state = None if h0 is None else h0[number * weights.directions + side]
            outputs.append(float_cell.run(direction, x, state, reverse=side == 1)[0])
        x = np.concatenate(outputs, axis=2)
    return x
