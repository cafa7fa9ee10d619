"""From float weights and sample inputs to a quantized GRU."""

from __future__ import annotations

from typing import Any

from qcore import _core
from qcore.gru.formats import Config
from qcore.gru.observation import Observer
from qcore.gru.quantized import QuantGRU
from qcore.gru.search import LEAST_GAIN, Progress, Search, search


class Calibrator(Observer):
    """Runs the float GRU on samples and keeps the range of every tensor.

    Args:
        weights: :class:`GruWeights`.
        method: how ranges follow from values. "mse": the exponent with the smallest squared error, for up to 8 bits;
            "minmax": everything seen; "ema": a moving average over steps of x and h, "minmax" of the rest;
            "percentile": without 0.01% of the values at each end.

    Raises:
        QcoreTypeError: other weights.
    """

    def finish(self, config: Config | None = None) -> QuantGRU:
        """Make the quantized GRU. Parameters are static from here on.

        Args:
            config: widths, pipeline and rules; ``Config()`` by default.

        Raises:
            QcoreValueError: nothing was observed, or the formats would need sums of more than 64 bits.
        """
        return QuantGRU._from_observer(self, config or Config())

    def search(
        self,
        budget: int,
        x: Any = None,
        h0: Any = None,
        *,
        config: Config | None = None,
        state_rows: int = 0,
        least_gain: float = LEAST_GAIN,
        target: float = 0.0,
        progress: Progress | None = None,
    ) -> Search:
        """Find the tensors to widen within a size: one at a time, always the one that lowers the measured error most.

        Starts from ``config`` and widens single tensors to 16 bits, biases to 32, as long as one lowers the error
        enough; then takes back those that no longer do. What costs no bytes is widened only if it pays, too.

        Args:
            budget: bytes of weights and biases, 1 for up to 8 bits, 2 to 16 and 4 to 32.
            x, h0: a batch to measure the outputs' error on, as for ``observe``; by default the last one observed.
            config: where to start; by default ``Config()``.
            state_rows: rows whose states of all layers count, too.
            least_gain: the part of the error that a widening must take away; 0.1 by default.
            target: a mean squared error at which the search may stop.
            progress: called with the number of configurations tried and the most there can be.

        Returns:
            The config found, and all that was tried.

        Raises:
            QcoreValueError, QcoreTypeError: nothing was observed, or an option is impossible.
        """
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
            raise _core.QcoreValueError(f"gru search: budget is {budget!r}, expected a number of bytes")
        if isinstance(state_rows, bool) or not isinstance(state_rows, int) or state_rows < 0:
            raise _core.QcoreValueError(f"gru search: state_rows is {state_rows!r}, expected a number of rows")
        if not 0 < least_gain < 1:
            raise _core.QcoreValueError(f"gru search: least_gain is {least_gain!r}, expected a fraction of 1")
        if not target >= 0:
            raise _core.QcoreValueError(f"gru search: target is {target!r}, expected a mean squared error")
        if self.weights.reverse:
            raise _core.QcoreValueError(
                "gru search: the weights run from the last step to the first, expected the same ones without reverse "
                "and samples in that order, which give the same config"
            )
        if self._last_batch is None:
            raise _core.QcoreValueError("gru search: search() before any observe(x), expected at least one batch")
        inputs, states = self._last_batch if x is None else self._checked(x, h0)
        assert inputs is not None
        start = config or Config()
        return search(
            self.weights, self.finish, budget, inputs, states, start, state_rows, least_gain, target, progress
        )
