"""Defines a fixed-point LSTM as a module."""

from __future__ import annotations

from typing import Any

import torch

from qcore import _core
from qcore._options import RangeMethod, option_names
from qcore.torch import operators, parts
from qcore.torch.recurrent import RecurrentModule


class LSTM(RecurrentModule):
    """Computes an LSTM in integers, in the place of ``torch.nn.LSTM``; gradients are those of a trainable one.

    Its state is one buffer: the bytes of the file that :meth:`qcore.lstm.QuantLSTM.save` writes.

    Args:
        lstm: a :class:`qcore.lstm.QuantLSTM`.

    A call takes x float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first; [T, C] without a batch) and
    (h0, c0) [layers * directions, B, S] and [layers * directions, B, H] (without B if x has none) or None; S is the
    ``output_size``, P of a module with a projection, else H. It returns the outputs and the last
    states, as ``torch.nn.LSTM`` does. Packed sequences are not taken: ``quantized(x, lengths=...)`` is for them.
    """

    kind = "lstm"

    def __init__(self, lstm: Any) -> None:
        from qcore.lstm import QuantLSTM

        super().__init__()
        if not isinstance(lstm, QuantLSTM):
            raise _core.QcoreTypeError(
                f"qcore.torch.LSTM: lstm is a {type(lstm).__name__}, expected a QuantLSTM: from_float(module, "
                "samples=...) makes one"
            )
        self._hold(lstm, parts.lstm_bytes(lstm))
        self.output_size = lstm.output_size

    def config(self) -> dict[str, Any]:
        """Return sizes and order of axes, which ``load_state_dict`` compares with those of the state."""
        return super().config() | {"output_size": self.output_size}

    def _configure(self, config: dict[str, Any]) -> None:
        super()._configure(config)
        self.output_size = config["output_size"]

    @staticmethod
    def _bytes(quantized: Any) -> torch.Tensor:
        return parts.lstm_bytes(quantized)

    @classmethod
    @option_names("LSTM.from_float")
    def from_float(
        cls,
        module: torch.nn.LSTM,
        *,
        samples: Any,
        bits: int = 8,
        method: RangeMethod = "mse",
        config: Any = None,
        trainable: bool = False,
    ) -> LSTM:
        """Calibrate and quantize a ``torch.nn.LSTM``.

        Args:
            module: with a projection (``proj_size``) or without.
            samples: one batch of inputs, [T, B, C] ([B, T, C] if batch_first), or a list of batches.
            bits: 8 or 16, ignored if ``config`` is given.
            method: how ranges follow from the samples, see :class:`qcore.lstm.Calibrator`.
            config: a :class:`qcore.lstm.Config`.
            trainable: whether to keep the float weights, as ``trained.weight_ih_l0`` and so on. In training mode a call
                then computes the integers of the weights as they are, with gradients that pass straight through every
                rounding, and each batch moves the ranges by a tenth, until ``freeze_ranges()``. ``eval()`` makes
                the integers that are saved and deployed.

        Raises:
            QcoreValueError, QcoreTypeError: module is no LSTM, or an option is impossible.
        """
        from qcore.lstm import Config, QuantLSTM

        if not isinstance(module, torch.nn.LSTM):
            raise _core.QcoreTypeError(
                f"LSTM.from_float: module is a {type(module).__name__}, expected a torch.nn.LSTM"
            )
        if samples is None:
            raise _core.QcoreValueError("LSTM.from_float: samples is None, expected inputs to calibrate with")
        if trainable:
            made: LSTM = cls._trainable(module, samples, config or Config(bits=bits), method)
        else:
            made = cls(QuantLSTM.from_torch(module, samples, bits, method=method, config=config))
        made._like(module)
        return made

    @property
    def quantized(self) -> Any:
        """Return the :class:`qcore.lstm.QuantLSTM`, which offers lengths and streaming."""
        if self.training:
            self._renew()
        return parts.lstm_of(self.state)

    def forward(
        self, x: torch.Tensor, states: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Run all steps.

        Args:
            x: float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first), or [T, C].
            states: h0 [layers * directions, B, S] and c0 [layers * directions, B, H], without B if x has none, or None
                for zeros.

        Returns:
            The outputs [T, B, directions * S] and the last h and c, with the axes that ``torch.nn.LSTM`` returns.

        Raises:
            QcoreValueError, QcoreTypeError: x or a state has another shape or dtype, or x is a packed sequence.
        """
        if states is not None and (not isinstance(states, (tuple, list)) or len(states) != 2):
            raise _core.QcoreTypeError(
                f"qcore.torch.LSTM: states is a {type(states).__name__}, expected (h0, c0) or None"
            )
        h0, c0 = (None, None) if states is None else states
        single, given = self._batched(x, h0, c0)
        if self.training and self.trained is not None:
            y, h, c = self.trained(given[0], given[1:], self.batch_first)
        else:
            y, h, c = operators.lstm(*given, self.state, self.output_size, *self._sizes())
        return (y.squeeze(self._batch_axis), (h.squeeze(1), c.squeeze(1))) if single else (y, (h, c))
