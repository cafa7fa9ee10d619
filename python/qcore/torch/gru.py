"""Defines a fixed-point GRU as a module."""

from __future__ import annotations

from typing import Any

import torch

from qcore import _core
from qcore._options import RangeMethod
from qcore.torch import operators, parts
from qcore.torch.module import QuantizedModule


class GRU(QuantizedModule):
    """Computes a GRU in integers, in the place of ``torch.nn.GRU``; without gradients.

    Its state is one buffer: the bytes of the file that :meth:`qcore.gru.QuantGRU.save` writes.

    Args:
        gru: a :class:`qcore.gru.QuantGRU`.

    A call takes x float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first; [T, C] without a batch) and h0
    [layers * directions, B, H] ([layers * directions, H]) or None, and returns the outputs and the last states, as
    ``torch.nn.GRU`` does. Packed sequences are not taken: ``quantized(x, lengths=...)`` is for them.
    """

    kind = "gru"
    _kept = ("state",)

    state: torch.Tensor

    def __init__(self, gru: Any) -> None:
        from qcore.gru import QuantGRU

        super().__init__()
        if not isinstance(gru, QuantGRU):
            raise _core.QcoreTypeError(
                f"qcore.torch.GRU: gru is a {type(gru).__name__}, expected a QuantGRU: from_float(module, samples=...) "
                "makes one"
            )
        with torch.inference_mode(False):
            self.register_buffer("state", parts.gru_bytes(gru))
        self.input_size, self.hidden_size = gru.input_size, gru.hidden_size
        self.num_layers, self.directions, self.batch_first = gru.num_layers, gru.directions, gru.batch_first

    @classmethod
    def from_float(
        cls, module: torch.nn.GRU, *, samples: Any, bits: int = 8, method: RangeMethod = "mse", config: Any = None
    ) -> GRU:
        """Calibrate and quantize a ``torch.nn.GRU``.

        Args:
            module: without dropout between layers while training.
            samples: one batch of inputs, [T, B, C] ([B, T, C] if batch_first), or a list of batches.
            bits: 8 or 16, ignored if ``config`` is given.
            method: how ranges follow from the samples, see :class:`qcore.gru.Calibrator`.
            config: a :class:`qcore.gru.Config`.

        Raises:
            QcoreValueError, QcoreTypeError: module is no GRU, or an option is impossible.
        """
        from qcore.gru import QuantGRU

        if not isinstance(module, torch.nn.GRU):
            raise _core.QcoreTypeError(f"GRU.from_float: module is a {type(module).__name__}, expected a torch.nn.GRU")
        if samples is None:
            raise _core.QcoreValueError("GRU.from_float: samples is None, expected inputs to calibrate with")
        made = cls(QuantGRU.from_torch(module, samples, bits, method=method, config=config))
        made.to(next(module.parameters()).device)
        made.train(module.training)
        return made

    @property
    def quantized(self) -> Any:
        """Return the :class:`qcore.gru.QuantGRU`, which offers lengths, streaming, gates and reports."""
        return parts.gru_of(self.state)

    def config(self) -> dict[str, Any]:
        """Return sizes and order of axes, which ``load_state_dict`` compares with those of the state."""
        names = ("kind", "input_size", "hidden_size", "num_layers", "directions", "batch_first")
        return {name: getattr(self, name) for name in names}

    def _configure(self, config: dict[str, Any]) -> None:
        self.input_size, self.hidden_size = config["input_size"], config["hidden_size"]
        self.num_layers, self.directions = config["num_layers"], config["directions"]
        self.batch_first = config["batch_first"]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        given = state_dict.get(prefix + "state")
        if isinstance(given, torch.Tensor) and given.shape != self.state.shape:
            # The file of another calibration may have a different length.
            self.state = torch.empty(given.shape, dtype=torch.uint8, device=self.state.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)

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
        if not isinstance(x, torch.Tensor):
            raise _core.QcoreTypeError(
                f"qcore.torch.GRU: x is a {type(x).__name__}, expected a tensor; for sequences of several lengths call "
                ".quantized(x, lengths=...)"
            )
        single = x.dim() == 2
        batch_axis = 0 if self.batch_first else 1
        if single:
            x, h0 = x.unsqueeze(batch_axis), None if h0 is None else h0.unsqueeze(1)
        sizes = (self.hidden_size, self.num_layers, self.directions, self.batch_first)
        y, last = operators.gru(x, h0, self.state, *sizes)
        return (y.squeeze(batch_axis), last.squeeze(1)) if single else (y, last)

    def extra_repr(self) -> str:
        return (
            f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"bidirectional={self.directions == 2}, batch_first={self.batch_first}"
        )
