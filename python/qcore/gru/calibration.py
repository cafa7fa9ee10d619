"""From float weights and sample inputs to a quantized GRU."""

from __future__ import annotations

from typing import Any

from qcore._recurrent.search import LEAST_GAIN, Limits, Progress, Search, search
from qcore.gru.formats import Config
from qcore.gru.observation import Observer
from qcore.gru.quantized import QuantGRU


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
        limits = Limits(budget, state_rows, least_gain, target)
        return search(self, self.finish, (x, h0), config or Config(), limits, progress)
