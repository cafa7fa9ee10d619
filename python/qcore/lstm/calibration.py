"""From float weights and sample inputs to a quantized LSTM."""

from __future__ import annotations

from qcore.lstm.formats import Config
from qcore.lstm.observation import Observer
from qcore.lstm.quantized import QuantLSTM


class Calibrator(Observer):
    """Runs the float LSTM on samples and keeps the range of every tensor.

    Args:
        weights: :class:`LstmWeights`.
        method: how ranges follow from values. "mse": the exponent with the smallest squared error, for up to 8 bits;
            "minmax": everything seen; "ema": a moving average over steps of x and h, "minmax" of the rest;
            "percentile": without 0.01% of the values at each end.

    Raises:
        QcoreTypeError: other weights.
    """

    def finish(self, config: Config | None = None) -> QuantLSTM:
        """Make the quantized LSTM. Parameters are static from here on.

        Args:
            config: widths and rules; ``Config()`` by default.

        Raises:
            QcoreValueError: nothing was observed, or the formats would need sums of more than 64 bits.
        """
        return QuantLSTM._from_observer(self, config or Config())
