"""Mixed widths under a size budget: the tensors whose widening pays, found by measured error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from qcore import _core
from qcore._recurrent.observation import ObserverBase
from qcore._recurrent.weights import WeightsBase

if TYPE_CHECKING:
    from rich.table import Table

Progress = Callable[[int, int], None]
"""Called with the number of configurations tried so far and the most there can be."""

LEAST_GAIN = 0.1
_WIDEST = {"biases": 32}


@dataclasses.dataclass(frozen=True)
class Trial:
    """Describes one configuration that was measured.

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
    """Holds the result of ``Calibrator.search``, with all configurations that were tried.

    Args:
        config: the one that was chosen.
        size: its bytes, as the budget counts them.
        error: its mean squared error of the outputs against float64.
        budget: what was given.
        tried: every configuration that was measured, in order.
    """

    config: Any
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


@dataclasses.dataclass(frozen=True)
class Limits:
    """Where a search stops; arguments as for ``Calibrator.search``."""

    budget: int
    state_rows: int
    least_gain: float
    target: float

    def check(self, where: str) -> None:
        """Raise an error that begins with `where` for a limit that is none."""
        if isinstance(self.budget, bool) or not isinstance(self.budget, int) or self.budget < 1:
            raise _core.QcoreValueError(f"{where}: budget is {self.budget!r}, expected a number of bytes")
        if isinstance(self.state_rows, bool) or not isinstance(self.state_rows, int) or self.state_rows < 0:
            raise _core.QcoreValueError(f"{where}: state_rows is {self.state_rows!r}, expected a number of rows")
        if not 0 < self.least_gain < 1:
            raise _core.QcoreValueError(f"{where}: least_gain is {self.least_gain!r}, expected a fraction of 1")
        if not self.target >= 0:
            raise _core.QcoreValueError(f"{where}: target is {self.target!r}, expected a mean squared error")


def size_of(weights: WeightsBase, config: Any, state_rows: int = 0) -> int:
    """Return the bytes of weights, biases and states of `state_rows` rows: 1 for up to 8 bits, 2 to 16, 4 to 32."""

    def each(name: str) -> int:
        bits = config.width(name)
        return 1 if bits <= 8 else 2 if bits <= 16 else 4

    directions = [direction for layer in weights.layers for direction in layer]
    matrices = sum(int(direction.w.size + direction.r.size) for direction in directions)
    matrices += sum(int(direction.projection.size) for direction in directions if direction.projection is not None)
    fixed = sum(2 * int(getattr(direction, name).size) for direction in directions for name in direction.others)
    vectors = sum(int(getattr(direction, name).size) for direction in directions for name in direction.biases)
    states = sum(each(name) * weights._state_size(name) for name in weights._states)
    return fixed + matrices * each("weights") + vectors * each("biases") + state_rows * len(directions) * states


def search(
    observer: ObserverBase,
    finish: Callable[[Any], Any],
    batch: tuple[Any, ...],
    config: Any,
    limits: Limits,
    progress: Progress | None,
) -> Search:
    """Search as ``Calibrator.search``.

    Args:
        observer: has the float weights, and has observed a batch.
        finish: makes the quantized layers of a config.
        batch: x and the initial states to measure the error on, as for ``observe``; x is None for the last one.
        config: where to start.
        limits: where to stop.
        progress: called with the number of configurations tried and the most there can be.

    Raises:
        QcoreValueError, QcoreTypeError: nothing was observed, or a limit is impossible.
    """
    where, weights = f"{observer.op} search", observer.weights
    limits.check(where)
    if weights.reverse:
        raise _core.QcoreValueError(
            f"{where}: the weights run from the last step to the first, expected the same ones without reverse and "
            "samples in that order, which give the same config"
        )
    if observer._last_batch is None:
        raise _core.QcoreValueError(f"{where}: search() before any observe(x), expected at least one batch")
    x, *states = observer._last_batch if batch[0] is None else observer._checked(*batch)
    assert x is not None
    exact = weights._outputs(x, states)
    given = np.ascontiguousarray(x.transpose(1, 0, 2) if weights.batch_first else x, np.float32)
    initial = [None if state is None else state.astype(np.float32) for state in states]

    smallest = size_of(weights, config, limits.state_rows)
    if smallest > limits.budget:
        raise _core.QcoreValueError(
            f"{where}: budget is {limits.budget} bytes, expected at least the {smallest} of the config it starts from"
        )

    def measure(made: Any) -> float:
        y = finish(made)(given, *initial)[0].astype(np.float64)
        return float(np.square((y.transpose(1, 0, 2) if weights.batch_first else y) - exact).mean())

    def size(made: Any) -> int:
        return size_of(weights, made, limits.state_rows)

    return _widen(config, (*observer.tensors, "weights", "biases"), limits, size, measure, progress)


def _widen(
    config: Any,
    names: tuple[str, ...],
    limits: Limits,
    size: Callable[[Any], int],
    measure: Callable[[Any], float],
    progress: Progress | None,
) -> Search:
    """Widen one of `names` after the other from `config` on; size and error of a config come from the functions."""
    candidates = [name for name in names if config.width(name) < _WIDEST.get(name, 16)]
    most = 1 + len(candidates) * (len(candidates) + 1) // 2 + len(candidates)
    tried: list[Trial] = []

    def attempt(number: int, tensor: str, widths: dict[str, int]) -> Trial:
        made = dataclasses.replace(config, widths=widths)
        trial = Trial(number, tensor, widths, size(made), measure(made), False)
        tried.append(trial)
        if progress is not None:
            progress(len(tried), most)
        return trial

    def choose(trial: Trial) -> Trial:
        chosen = dataclasses.replace(trial, chosen=True)
        tried[tried.index(trial)] = chosen
        return chosen

    def fits(widths: dict[str, int]) -> bool:
        return size(dataclasses.replace(config, widths=widths)) <= limits.budget

    best = choose(attempt(0, "", dict(config.widths)))
    number, widened = 0, list[str]()
    while best.error > limits.target:
        number += 1
        trials = []
        for name in candidates:
            widths = best.widths | {name: _WIDEST.get(name, 16)}
            if name not in widened and fits(widths):
                trials.append(attempt(number, name, widths))
        found = min(trials, key=lambda trial: (trial.error, trial.size), default=None)
        if found is None or found.error > (1 - limits.least_gain) * best.error:
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
        if narrower.error <= max(limits.target, best.error / (1 - limits.least_gain)):
            best = choose(narrower)
    return Search(dataclasses.replace(config, widths=best.widths), best.size, best.error, limits.budget, tuple(tried))
