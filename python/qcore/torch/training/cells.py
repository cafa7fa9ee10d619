"""Defines the derivatives of recurrent cells at the states that the integers have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

_WEIGHTS = 5  # w, r, bx, br and a projection

Steps = list[Tensor]
"""A tensor [B, ...] for each step, in the order of computation."""


class CellGradient(ABC):
    """Gates of all steps of one direction, and what a step's gradients are.

    Args:
        wx: W x + b [T, B, gates * H], steps in the order of computation.
        rh: R h, with its bias if it has one, of the states before each step.
        states: each state before its first step and after each step, [T + 1, B, H]; only h is known, which the integers
            computed.
    """

    states: ClassVar[tuple[str, ...]]
    shown: Tensor
    """The outputs [T, B, H] that a projection multiplies; only a cell that may have a projection stores them."""

    def __init__(self, wx: Tensor, rh: Tensor, before: Tensor, others: tuple[Tensor, ...]) -> None:
        self._prepare(wx, rh, before, *others)

    @abstractmethod
    def _prepare(self, wx: Tensor, rh: Tensor, before: Tensor, *others: Tensor) -> None:
        """Compute the gates from the products, from h before each step and from the other states before the first."""

    @abstractmethod
    def step(self, t: int, grads: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the gradients of a step's W x and R h [B, gates * H], and those of the states before it.

        The gradient of h before the step lacks what comes through R h.
        """


class GruGradient(CellGradient):
    """Differentiates torch's GRU; gate order z, r, g."""

    states = ("h",)

    def _prepare(self, wx: Tensor, rh: Tensor, before: Tensor, *others: Tensor) -> None:
        (wz, wr, wg), (rz, rr, self.rb) = wx.chunk(3, -1), rh.chunk(3, -1)
        self.z, self.r = torch.sigmoid(wz + rz), torch.sigmoid(wr + rr)
        g = torch.tanh(wg + self.r * self.rb)
        self.to_z = (before - g) * self.z * (1 - self.z)
        self.to_g = (1 - self.z) * (1 - g * g)
        self.to_r = self.rb * self.r * (1 - self.r)

    def step(self, t: int, grads: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        (h,) = grads
        z, g = h * self.to_z[t], h * self.to_g[t]
        r = g * self.to_r[t]
        return torch.cat([z, r, g], -1), torch.cat([z, r, g * self.r[t]], -1), [h * self.z[t]]


class LstmGradient(CellGradient):
    """Differentiates torch's LSTM; gate order i, f, g, o."""

    states = ("h", "c")

    def _prepare(self, wx: Tensor, rh: Tensor, before: Tensor, *others: Tensor) -> None:
        i, f, g, o = (wx + rh).chunk(4, -1)
        i, self.f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = [others[0]]
        for forget, new in zip(self.f, i * g, strict=True):
            c.append(forget * c[-1] + new)
        memory = torch.stack(c)
        shown = torch.tanh(memory[1:])
        self.shown = o * shown
        self.to_i, self.to_f = g * i * (1 - i), memory[:-1] * self.f * (1 - self.f)
        self.to_g, self.to_o = i * (1 - g * g), shown * o * (1 - o)
        self.to_c = o * (1 - shown * shown)

    def step(self, t: int, grads: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        h, c = grads
        c = c + h * self.to_c[t]
        gates = torch.cat([c * self.to_i[t], c * self.to_f[t], c * self.to_g[t], h * self.to_o[t]], -1)
        return gates, gates, [torch.zeros_like(h), c * self.f[t]]


class IntegerDirection(torch.autograd.Function):
    """Runs one direction of one layer in integers; gradients are those of the float cell at the integers' states."""

    @staticmethod
    def forward(ctx: Any, direction: Any, x: Tensor, *rest: Tensor | None) -> Any:
        """Return y and the last states.

        Args:
            ctx: of the function.
            direction: a :class:`qcore.torch.training.layers.DirectionRun`.
            x: float32 [T, B, C].
            rest: w, r, bx, br and a projection, then a state [1, B, H] for each of the cell's; None for what there is
                not.
        """
        states = rest[_WEIGHTS:]
        results = direction.run(x, states)
        ctx.direction = direction
        ctx.given = [value is not None for value in rest]
        ctx.save_for_backward(x, results[0], *(state for state in states if state is not None))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Return gradients of x, of the weights and of the states, straight through every rounding."""
        x, y, *given = ctx.saved_tensors
        iterator = iter(given)
        states = [next(iterator) if has else None for has in ctx.given[_WEIGHTS:]]
        inputs, weights, initial = ctx.direction.gradients(x, y, states, grads[0], grads[1:])
        every = zip([*weights, *initial], ctx.given, strict=True)
        return (None, inputs, *(grad if has else None for grad, has in every))
