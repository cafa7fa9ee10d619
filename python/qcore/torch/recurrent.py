"""Defines what the modules of quantized recurrent layers share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from qcore import _core
from qcore.torch.module import QuantizedModule
from qcore.torch.training.layers import TrainableLayers, operator


class RecurrentModule(QuantizedModule):
    """Holds a quantized recurrent layer as one buffer: the bytes of the file that its ``save`` writes.

    A trainable one holds float weights, too, in ``trained``: its integers are made of them.
    """

    _kept = ("state",)

    state: torch.Tensor
    trained: TrainableLayers | None

    def _hold(self, quantized: Any, state: torch.Tensor) -> None:
        with torch.inference_mode(False):
            self.register_buffer("state", state)
        self.trained = None
        self.input_size, self.hidden_size = quantized.input_size, quantized.hidden_size
        self.num_layers, self.directions = quantized.num_layers, quantized.directions
        self.batch_first = quantized.batch_first

    @classmethod
    def _trainable(cls, module: Any, samples: Any, config: Any, method: Any) -> Any:
        """Return a trainable module with the weights of torch's."""
        trained = TrainableLayers.copy_of(cls.kind, module, samples, config, method)
        made = cls(trained.quantized(module.batch_first))
        made.trained = trained
        return made

    @staticmethod
    @abstractmethod
    def _bytes(quantized: Any) -> torch.Tensor:
        """Return the bytes of the quantized layer's file."""

    def _renew(self) -> None:
        """Make the integers of the float weights and ranges as they are."""
        if self.trained is not None:
            state = self._bytes(self.trained.quantized(self.batch_first)).to(self.state.device)
            with torch.inference_mode(False):
                self.state = state

    def train(self, mode: bool = True) -> Any:
        """Set the mode; at its end the integers of a trainable module are made of its weights.

        Args:
            mode: whether to train.

        Raises:
            QcoreValueError: the weights have a NaN or an infinity, or need sums of more than 64 bits.
        """
        if not mode:
            self._renew()
        return super().train(mode)

    def freeze_ranges(self, frozen: bool = True) -> None:
        """Keep the ranges of all tensors as they are, so that their exponents and zero points do not change any more.

        Args:
            frozen: False lets batches change them again.

        Raises:
            QcoreValueError: the module is not trainable.
        """
        if self.trained is None:
            raise _core.QcoreValueError(
                f"qcore.torch.{type(self).__name__}: freeze_ranges() of a module without float weights, expected one "
                "of from_float(..., trainable=True)"
            )
        self.trained.frozen.fill_(frozen)

    def _like(self, module: Any) -> None:
        """Take the device and the mode of the float module."""
        self.to(next(module.parameters()).device)
        self.train(module.training)

    def config(self) -> dict[str, Any]:
        """Return sizes and order of axes, which ``load_state_dict`` compares with those of the state."""
        names = ("kind", "input_size", "hidden_size", "num_layers", "directions", "batch_first")
        config = {name: getattr(self, name) for name in names}
        if self.trained is not None:
            config["trainable"] = {"config": self.trained.config.to_json(), "bias": self.trained.bias}
            if self.trained.projection:
                config["trainable"]["projection"] = self.trained.projection
        return config

    def _configure(self, config: dict[str, Any]) -> None:
        self.input_size, self.hidden_size = config["input_size"], config["hidden_size"]
        self.num_layers, self.directions = config["num_layers"], config["directions"]
        self.batch_first = config["batch_first"]
        self.trained = None
        if "trainable" in config:
            given = config["trainable"]
            made = operator(self.kind).config.from_json(given["config"])
            sizes = (self.input_size, self.hidden_size, self.num_layers, self.directions)
            projection = int(given.get("projection", 0))
            self.trained = TrainableLayers(self.kind, sizes, made, bool(given["bias"]), projection)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        given = state_dict.get(prefix + "state")
        if isinstance(given, torch.Tensor) and given.shape != self.state.shape:
            # The file of another calibration may have a different length.
            self.state = torch.empty(given.shape, dtype=torch.uint8, device=self.state.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _batched(self, x: Any, *states: torch.Tensor | None) -> tuple[bool, list[Any]]:
        """Return whether x has no batch axis, and x and the states with one.

        Raises:
            QcoreTypeError: x is no tensor, such as a packed sequence.
        """
        if not isinstance(x, torch.Tensor):
            raise _core.QcoreTypeError(
                f"qcore.torch.{type(self).__name__}: x is a {type(x).__name__}, expected a tensor; for sequences of "
                "several lengths call .quantized(x, lengths=...)"
            )
        if x.dim() != 2:
            return False, [x, *states]
        return True, [x.unsqueeze(self._batch_axis), *(None if each is None else each.unsqueeze(1) for each in states)]

    @property
    def _batch_axis(self) -> int:
        return 0 if self.batch_first else 1

    def _sizes(self) -> tuple[int, int, int, bool]:
        return self.hidden_size, self.num_layers, self.directions, self.batch_first

    def extra_repr(self) -> str:
        return (
            f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"bidirectional={self.directions == 2}, batch_first={self.batch_first}"
        )
