"""Defines a fixed-point GRU as a module."""

from __future__ import annotations

from typing import Any

import torch

from qcore import _core
from qcore._options import RangeMethod, option_names
from qcore.torch import operators, parts
from qcore.torch.recurrent import RecurrentModule


class GRU(RecurrentModule):
    """Computes a GRU in integers, in the place of ``torch.nn.GRU``; gradients are those of a trainable one.

    Its state is one buffer: the bytes of the file that :meth:`qcore.gru.QuantGRU.save` writes.

    Args:
        gru: a :class:`qcore.gru.QuantGRU`.

    A call takes x float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first; [T, C] without a batch) and h0
    [layers * directions, B, H] ([layers * directions, H]) or None, and returns the outputs and the last states, as
    ``torch.nn.GRU`` does. Packed sequences are not taken: ``quantized(x, lengths=...)`` is for them.
    """

    kind = "gru"

    def __init__(self, gru: Any) -> None:
        from qcore.gru import QuantGRU

        super().__init__()
        if not isinstance(gru, QuantGRU):
            raise _core.QcoreTypeError(
                f"qcore.torch.GRU: gru is a {type(gru).__name__}, expected a QuantGRU: from_float(module, samples=...) "
                "makes one"
            )
        self._hold(gru, parts.gru_bytes(gru))

    @staticmethod
    def _bytes(quantized: Any) -> torch.Tensor:
        return parts.gru_bytes(quantized)

    @classmethod
    @option_names("GRU.from_float")
    def from_float(
        cls,
        module: torch.nn.GRU,
        *,
        samples: Any,
        bits: int = 8,
        method: RangeMethod = "mse",
        config: Any = None,
        trainable: bool = False,
    ) -> GRU:
        """Calibrate and quantize a ``torch.nn.GRU``.

        Args:
            module: without dropout between layers while training.
            samples: one batch of inputs, [T, B, C] ([B, T, C] if batch_first), or a list of batches.
            bits: 8 or 16, ignored if ``config`` is given.
            method: how ranges follow from the samples, see :class:`qcore.gru.Calibrator`.
            config: a :class:`qcore.gru.Config`.
            trainable: whether to keep the float weights, as ``trained.weight_ih_l0`` and so on. In training mode a call
                then computes the integers of the weights as they are, with gradients that pass straight through every
                rounding, and each batch moves the ranges by a tenth, until ``freeze_ranges()``. ``eval()`` makes
                the integers that are saved and deployed.

        Raises:
            QcoreValueError, QcoreTypeError: module is no GRU, or an option is impossible.
        """
        from qcore.gru import Config, QuantGRU

        if not isinstance(module, torch.nn.GRU):
            raise _core.QcoreTypeError(f"GRU.from_float: module is a {type(module).__name__}, expected a torch.nn.GRU")
        if samples is None:
            raise _core.QcoreValueError("GRU.from_float: samples is None, expected inputs to calibrate with")
        if trainable:
            made: GRU = cls._trainable(module, samples, config or Config(bits=bits), method)
        else:
            made = cls(QuantGRU.from_torch(module, samples, bits, method=method, config=config))
        made._like(module)
        return made

    @property
    def quantized(self) -> Any:
        """Return the :class:`qcore.gru.QuantGRU`, which offers lengths, streaming, gates and reports."""
        if self.training:
            self._renew()
        return parts.gru_of(self.state)

    def forward(self, x: torch.Tensor, h0: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Run all steps.

        Args:
            x: float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first), or [T, C].
            h0: [layers * directions, B, H] or [layers * directions, H], or None for zeros.

        Returns:
            The outputs [T, B, directions * H] and the last states, with the axes that ``torch.nn.GRU`` returns.

        Raises:
            QcoreValueError, QcoreTypeError: x or h0 has another shape or dtype, or x is a packed sequence.
        """
        single, given = self._batched(x, h0)
        if self.training and self.trained is not None:
            y, last = self.trained(given[0], given[1:], self.batch_first)
        else:
            y, last = operators.gru(*given, self.state, *self._sizes())
        return (y.squeeze(self._batch_axis), last.squeeze(1)) if single else (y, last)
