"""Defines the float weights and the ranges from which a recurrent layer's integers are made while it is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qcore import _core
from qcore._recurrent.formats import Format
from qcore._recurrent.ranges import EMA_KEPT
from qcore.torch.training.cells import CellGradient, GruGradient, IntegerDirection, LstmGradient

_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_PROJECTION = "weight_hr"


@dataclasses.dataclass(frozen=True)
class Operator:
    """The parts that a trainable layer needs from its kind, a GRU or an LSTM.

    Args:
        observer: finds the ranges of float weights on samples, and makes integers of them.
        weights: the float weights.
        quantized: the integers.
        config: their widths.
        tensors: names of the tensors that have ranges.
        projected: the same of layers with a projection.
        order: blocks of rows of torch's gates in the order of the integers.
        gradient: the cell's derivatives.
    """

    observer: Any
    weights: Any
    quantized: Any
    config: Any
    tensors: tuple[str, ...]
    projected: tuple[str, ...]
    order: tuple[int, ...]
    gradient: type[CellGradient]


def operator(kind: str) -> Operator:
    """Return the operator of "gru" or "lstm"."""
    if kind == "gru":
        from qcore.gru import Config, GruWeights, QuantGRU
        from qcore.gru.observation import Observer

        return Operator(Observer, GruWeights, QuantGRU, Config, Observer.seen, (), (1, 0, 2), GruGradient)
    from qcore import lstm
    from qcore.lstm.formats import PROJECTED, TENSORS
    from qcore.lstm.observation import Observer as LstmObserver

    order = (0, 1, 2, 3)
    tensors = (TENSORS, PROJECTED)
    return Operator(LstmObserver, lstm.LstmWeights, lstm.QuantLSTM, lstm.Config, *tensors, order, LstmGradient)


class TrainableLayers(torch.nn.Module):
    """Holds the float weights of a recurrent layer, and the ranges of its tensors.

    Parameters have the names and the order of gates of torch's module. ``ranges`` is float64
    [layers * directions, tensors, 2]; ``frozen`` says whether batches still change it.

    Args:
        kind: "gru" or "lstm".
        sizes: input_size, hidden_size, num_layers, directions.
        config: widths and rules of the integers.
        bias: whether there are biases.
        projection: P of an LSTM with a projection, else 0.

    Raises:
        QcoreValueError: the config's rule needs samples.
    """

    ranges: Tensor
    frozen: Tensor

    def __init__(self, kind: str, sizes: Sequence[int], config: Any, bias: bool, projection: int = 0) -> None:
        super().__init__()
        _keep_eager()
        self.kind, self.config, self.bias, self.projection = kind, config, bias, projection
        if config.rule == "mse":
            raise _core.QcoreValueError(
                f"qcore.torch.{kind.upper()}: config.rule is 'mse', expected 'cover' or 'nearest': while training, "
                "exponents follow from ranges"
            )
        self.input_size, self.hidden_size, self.num_layers, self.directions = sizes
        rows, outputs = len(operator(kind).order) * self.hidden_size, projection or self.hidden_size
        for layer in range(self.num_layers):
            inputs = self.input_size if layer == 0 else outputs * self.directions
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = dict(
                    zip(_PARTS[: 4 if bias else 2], ((rows, inputs), (rows, outputs), (rows,), (rows,)), strict=False)
                )
                if projection:
                    shapes[_PROJECTION] = (projection, self.hidden_size)
                for name, shape in shapes.items():
                    self.register_parameter(name + suffix, torch.nn.Parameter(torch.empty(shape)))
        tensors = len(operator(kind).projected if projection else operator(kind).tensors)
        self.register_buffer("ranges", torch.zeros(self.num_layers * self.directions, tensors, 2, dtype=torch.float64))
        self.register_buffer("frozen", torch.tensor(False))

    @classmethod
    def copy_of(cls, kind: str, module: Any, samples: Any, config: Any, method: Any) -> TrainableLayers:
        """Copy the weights of torch's module, and take ranges from samples.

        Args:
            kind: "gru" or "lstm".
            module: the float module.
            samples: one batch of inputs as the module takes them, or a list of batches.
            config: widths and rules of the integers.
            method: how ranges follow from the samples.

        Raises:
            QcoreValueError, QcoreTypeError: the module has dropout between layers or float64 weights, or samples have
                another shape.
        """
        if module.dropout and module.num_layers > 1:
            raise _core.QcoreValueError(
                f"qcore.torch.{kind.upper()}: module has dropout {module.dropout} between layers, expected 0: the "
                "integers of all layers are computed without it"
            )
        sizes = (module.input_size, module.hidden_size, module.num_layers, 2 if module.bidirectional else 1)
        found = operator(kind)
        observer = found.observer(found.weights.from_torch(module), method)
        for batch in samples if isinstance(samples, (list, tuple)) else [samples]:
            observer.observe(batch.detach().cpu().double().numpy() if hasattr(batch, "detach") else batch)
        made = cls(kind, sizes, config, module.bias, getattr(module, "proj_size", 0))
        own = dict(made.named_parameters())
        with torch.no_grad():
            for name, value in module.named_parameters():
                own[name].copy_(value)
            made.ranges.copy_(torch.from_numpy(made._bounds(observer)))
        return made

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.directions]

    def _bounds(self, observer: Any) -> np.ndarray[Any, Any]:
        return np.array(
            [[seen[name].bounds() for name in observer.seen] for layer in observer._ranges for seen in layer]
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move and convert all but the dtype of ranges."""
        kept = self.ranges
        super()._apply(fn, recurse)
        if self.ranges.dtype != kept.dtype:
            self.ranges = kept.to(self.ranges.device)
        return self

    def _observer(self, batch: tuple[Any, ...] | None) -> Any:
        """Return an observer of the weights as they are, which has seen a batch ([T, B, ...] each) or nothing."""
        found = operator(self.kind)
        arrays = {name: value.detach().double().cpu().numpy() for name, value in self.named_parameters()}
        observer = found.observer(found.weights.from_state_dict(arrays), "minmax")
        if batch is None:
            observer._last_batch = ()
        else:
            observer.observe(*(None if each is None else each.detach().double().cpu().numpy() for each in batch))
        return observer

    def layers(self, batch: tuple[Any, ...] | None = None) -> list[list[tuple[Any, dict[str, Any]]]]:
        """Return the parameters of the integers, after the ranges have moved towards those of a batch.

        Args:
            batch: x [T, B, C] and the states, or None to leave the ranges.
        """
        observer = self._observer(batch)
        if batch is not None:
            seen = torch.from_numpy(self._bounds(observer)).to(self.ranges.device)
            self.ranges.mul_(EMA_KEPT).add_(seen, alpha=1 - EMA_KEPT)
        rows = iter(self.ranges.tolist())
        for layer in observer._ranges:
            for direction in layer:
                for name, (low, high) in zip(observer.seen, next(rows), strict=True):
                    direction[name].low, direction[name].high = low, high
        made: list[list[tuple[Any, dict[str, Any]]]] = observer._quantize_layers(self.config)
        return made

    def quantized(self, batch_first: bool) -> Any:
        """Return the integers of the weights and ranges as they are."""
        return operator(self.kind).quantized(self.layers(), self.config, batch_first=batch_first)

    def forward(self, x: Tensor, states: Sequence[Tensor | None], batch_first: bool) -> tuple[Tensor, ...]:
        """Run all steps in integers, with gradients for x, the states and the weights.

        Args:
            x: float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first).
            states: [layers * directions, B, H] each, or None.
            batch_first: the order of x's and y's axes.

        Returns:
            y and the last states, of x's dtype.
        """
        result: tuple[Tensor, ...] = _eager[0](self, x, states, batch_first)
        return result

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        _keep_eager()

    def _run(self, x: Tensor, states: Sequence[Tensor | None], batch_first: bool) -> tuple[Tensor, ...]:
        values = x.transpose(0, 1) if batch_first else x
        values, given = values.float(), [None if each is None else each.float() for each in states]
        layers = self.layers(None if self.frozen else (values, *given))
        last: list[list[Tensor]] = [[] for _ in states]
        for number, layer in enumerate(layers):
            outputs = []
            for side, suffix in enumerate(self._suffixes(number)):
                row = number * self.directions + side
                run = DirectionRun(operator(self.kind), layer[side], self.config, reverse=side == 1)
                initial = [None if each is None else each[row : row + 1] for each in given]
                y, *ends = IntegerDirection.apply(run, values, *self._weights(suffix), *initial)
                outputs.append(y)
                for kept, end in zip(last, ends, strict=True):
                    kept.append(end)
            values = torch.cat(outputs, 2)
        y = values.transpose(0, 1) if batch_first else values
        return (y.to(x.dtype), *(torch.cat(each).to(x.dtype) for each in last))

    def _weights(self, suffix: str) -> list[Tensor | None]:
        """Return w, r, bx, br with gates in the order of the integers, and the projection of a direction."""
        own: Mapping[str, Tensor] = dict(self.named_parameters())
        order = operator(self.kind).order
        values = [own.get(name + suffix) for name in _PARTS]
        ordered: list[Tensor | None] = [
            None if value is None else torch.cat([value.chunk(len(order))[gate] for gate in order]) for value in values
        ]
        return [*ordered, own.get(_PROJECTION + suffix)]


_eager: list[Any] = []
"""The function that runs layers outside of torch.compile's graphs."""


def _keep_eager() -> None:
    """Make the function when a module needs it: torch.compiler.disable imports the compiler, which takes seconds."""
    if not _eager:
        _eager.append(torch.compiler.disable(TrainableLayers._run))


class DirectionRun:
    """Runs one direction of one layer, and differentiates it.

    Args:
        found: the operator.
        layer: the core's object and what it was made of.
        config: of the integers.
        reverse: whether it runs from the last step to the first.
    """

    def __init__(self, found: Operator, layer: tuple[Any, dict[str, Any]], config: Any, *, reverse: bool) -> None:
        self.found, self.reverse = found, reverse
        self.integers = found.quantized([[layer]], config, reverse=reverse)
        self.parts = layer[1]

    def run(self, x: Tensor, states: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """Return y [T, B, H] and the last states [1, B, H], float32."""
        given = (None if each is None else each.detach().contiguous() for each in states)
        return tuple(self.integers(x.detach().contiguous(), *given))

    def gradients(
        self, x: Tensor, y: Tensor, states: Sequence[Tensor | None], dy: Tensor, dlast: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor | None], list[Tensor]]:
        """Return the gradients of x, of w, r, bx, br and the projection, and of the initial states.

        Every rounding passes gradients on. Numbers of x and of initial states beyond their formats get none.

        Args:
            x, y, states: inputs, outputs and initial states of the run.
            dy, dlast: gradients of y and of the last states.
        """
        inputs, inside = self._rounded("x", x)
        initial, kept = [], []
        for name, state in zip(self.found.gradient.states, states, strict=True):
            if state is None:
                size = y.shape[-1] if name == "h" else self.integers.hidden_size
                state = y.new_zeros(1, y.shape[1], size)
            values, mask = self._rounded(name, state)
            initial.append(values[0])
            kept.append(mask)
        inputs, y, dy = (self._in_order(each) for each in (inputs, y, dy))
        before = torch.cat([initial[0][None], y[:-1]])
        w, r, bx, br = (self._value(name, x) for name in ("w", "r", "bx", "br"))
        projection = self._value("projection", x) if "projection" in self.parts else None
        cell = self.found.gradient(inputs @ w.T + bx, before @ r.T + br, before, tuple(initial[1:]))
        grads, dwx, drh, dh = [each[0] for each in dlast], [], [], []
        for t in range(len(y) - 1, -1, -1):
            grads[0] = grads[0] + dy[t]
            dh.append(grads[0])
            if projection is not None:
                grads[0] = grads[0] @ projection
            of_x, of_h, grads = cell.step(t, grads)
            # With a projection h has no part in the next one but through R h.
            grads[0] = of_h @ r + (grads[0] if projection is None else 0)
            dwx.append(of_x)
            drh.append(of_h)
        of_wx, of_rh = torch.stack(dwx[::-1]), torch.stack(drh[::-1])
        weights: list[Tensor | None] = [torch.einsum("tbg,tbk->gk", of_wx, inputs)]
        weights += [torch.einsum("tbg,tbk->gk", of_rh, before), of_wx.sum((0, 1)), of_rh.sum((0, 1))]
        weights.append(None if projection is None else torch.einsum("tbp,tbh->ph", torch.stack(dh[::-1]), cell.shown))
        return (
            self._in_order(of_wx @ w) * inside,
            weights,
            [g[None] * mask for g, mask in zip(grads, kept, strict=True)],
        )

    def _in_order(self, steps: Tensor) -> Tensor:
        """Return steps in the order of computation, or back."""
        return steps.flip(0) if self.reverse else steps

    def _rounded(self, name: str, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the integers have of numbers, and where the format holds them."""
        form: Format = self.integers.format(name)
        codes = torch.round(values.double() * 2.0**form.exponent) + form.zero_point
        inside = (codes >= form.lowest) & (codes <= form.highest)
        kept = codes.clamp(form.lowest, form.highest) - form.zero_point
        return (kept * 2.0**-form.exponent).to(values.dtype), inside

    def _value(self, name: str, like: Tensor) -> Tensor:
        """Return what codes of weights or biases stand for; an LSTM's only bias is that of W x."""
        if name not in self.parts:
            name = "b" if name == "bx" else name
        if name not in self.parts:
            return like.new_zeros(())
        exponents = self.parts[f"{name}_exponents"]
        codes = self.parts[name]
        values = np.ldexp(codes.astype(np.float64), -(exponents[:, None] if codes.ndim == 2 else exponents))
        return torch.from_numpy(values).to(like)
