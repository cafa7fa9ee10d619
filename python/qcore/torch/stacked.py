"""Defines the layers of experts whose weights lie after each other, for products with all of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

import qcore
from qcore.torch import operators, parts
from qcore.torch.dispatch import is_plain_call
from qcore.torch.module import autocast
from qcore.torch.weighted import Linear, ModuleWeight

_PANEL_ROWS = 16
"""Rows that lie together in a packed weight: experts of whole panels can lie after each other."""
_MOST_EXPERTS = 1023  # of the kernel for CUDA


class ExpertLinear(Linear):
    """Computes the linear layer of an expert, whose weight may lie in one memory with those of the others.

    The buffer ``packed`` is then the memory of all experts and the same tensor in all their layers, and ``format``
    describes it. State and ``weight`` are the expert's own, copied when they are asked for.

    Attributes:
        expert: number of the expert, or None for a weight in memory of its own.
        count: of experts in the memory.
    """

    expert: int | None = None
    count: int = 1

    @classmethod
    def of(cls, layer: Linear) -> ExpertLinear:
        """Return a layer with the weight, bias and options of another one, which shares its memory."""
        made = cls.__new__(cls)
        made.__dict__.update(layer.__dict__)
        made._parameters, made._buffers = dict(layer._parameters), dict(layer._buffers)
        made._view = None
        return made

    def put_into(self, packed: torch.Tensor, form: parts.WeightFormat, number: int, count: int) -> None:
        """Take the memory of all experts in place of its own.

        Args:
            packed: that memory, which holds this layer's weight.
            form: its format.
            number: of this expert.
            count: of all experts.
        """
        self._set_packed(packed, form)
        self.expert, self.count = number, count

    def take_out(self) -> None:
        """Copy the weight into memory of its own."""
        if self.expert is not None:
            self._set_packed(*self._own())

    def _set_packed(self, packed: torch.Tensor, form: parts.WeightFormat) -> None:
        super()._set_packed(packed, form)
        self.expert, self.count = None, 1

    def _own(self) -> tuple[torch.Tensor, parts.WeightFormat]:
        packed, form = super()._own()
        return (packed, form) if self.expert is None else parts.member(packed, form, self.count, self.expert)

    @property
    def weight(self) -> ModuleWeight:
        """Return the expert's packed weight: a copy of its rows if it lies in the memory of all experts."""
        if self.expert is None or torch.compiler.is_compiling() or self.packed.is_meta:
            return super().weight
        return ModuleWeight.of(parts.from_tensor(*self._own()), self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute ``x @ weight.T + bias``.

        Args:
            x: float32, float16 or bfloat16 [..., K].

        Returns:
            [..., N] of x's dtype, or of autocast's.

        Raises:
            QcoreValueError, QcoreTypeError: x has another shape, dtype or device.
        """
        if self.expert is None or not is_plain_call(x, self.bias) or x.dim() == 0:
            return super().forward(x)
        rows = x.reshape(-1, x.shape[-1])
        counts = torch.zeros(self.count, dtype=torch.int32)
        counts[self.expert] = len(rows)
        biases = None if self.bias is None else self.bias.detach().expand(self.count, -1)
        y = _product(self, rows, counts.to(x.device), biases)
        return y.view(*x.shape[:-1], -1)


def is_one_memory(layers: Sequence[torch.nn.Module]) -> bool:
    """Return whether the weights of all experts lie in one memory, in their order, and nothing watches the layers."""
    first: Any = layers[0]
    if type(first) is not ExpertLinear or first.count != len(layers):
        return False
    # Asked at every call: nothing here takes more than a look into a dictionary.
    packed, compute, has_bias = first._buffers["packed"], first.compute, first._parameters.get("bias") is not None
    for number, layer in enumerate(layers):
        if (
            type(layer) is not ExpertLinear
            or layer.expert != number
            or layer._buffers["packed"] is not packed
            or layer.compute != compute
            or (layer._parameters.get("bias") is not None) is not has_bias
            or layer._forward_hooks
            or layer._forward_pre_hooks
        ):
            return False
    return True


def arrange(layers: torch.nn.ModuleList) -> None:
    """Put the weights of a projection's experts into one memory if one call can multiply them, else into their own.

    On the CPU these are plain weights of one format, with an N that is a multiple of 16; on a CUDA device those whose
    products have integer codes in a kernel of ``grouped_linear`` on tensor cores. Layers of other kinds stay.

    Args:
        layers: of one projection, an expert each; they are replaced by :class:`ExpertLinear`.
    """
    if is_one_memory(layers) and _is_fast(cast(Linear, layers[0])):
        return
    for layer in layers:
        if isinstance(layer, ExpertLinear):
            layer.take_out()
    if not _is_alike(layers):
        return
    experts = [layer if type(layer) is ExpertLinear else ExpertLinear.of(cast(Linear, layer)) for layer in layers]
    assert experts[0].format is not None
    packed, whole = parts.stacked([each.packed for each in experts], experts[0].format)
    for number, each in enumerate(experts):
        each.put_into(packed, whole, number, len(experts))
        layers[number] = each


def _is_alike(layers: Sequence[torch.nn.Module]) -> bool:
    linear = [each for each in layers if type(each) in (Linear, ExpertLinear)]
    if len(linear) < max(2, len(layers)):
        return False
    about = {_about(cast(Linear, each)) for each in linear}
    places = {each.packed.data_ptr() for each in cast("list[Linear]", linear)}
    first = cast(Linear, linear[0])
    if len(about) > 1 or first.format is None or first.packed.is_meta or len(places) < len(linear):
        return False
    plain = first.format.encoding is None and first.activation is None
    return plain and first.shape[0] % _PANEL_ROWS == 0 and len(linear) <= _MOST_EXPERTS and _is_fast(first)


def _about(layer: Linear) -> Any:
    bias = None if layer.bias is None else layer.bias.dtype
    return layer.format, layer.compute, layer.activation, layer.packed.device, bias, layer.dtype


def _is_fast(layer: Linear) -> bool:
    if layer.packed.device.type == "cpu":
        return True
    blocks = -(-layer.shape[1] // layer.block_size)
    return layer.compute in ("int8", "int8_asym") and (blocks <= 1 or layer.block_size % 32 == 0)


def grouped(layers: Sequence[torch.nn.Module], x: torch.Tensor, row_counts: torch.Tensor) -> torch.Tensor:
    """Multiply each row by the weight of its expert, in one call.

    Args:
        layers: those of a projection, for which :func:`is_one_memory` is true.
        x: float32, float16 or bfloat16 [M, K], the rows of expert 0 first, then those of expert 1, and so on.
        row_counts: [E], as of :func:`qcore.grouped_linear`. Rows behind the last expert's have any values.

    Returns:
        [M, N] of x's dtype, or of autocast's.
    """
    first = cast(ExpertLinear, layers[0])
    biases = None
    if first.bias is not None:
        biases = torch.stack([cast(torch.Tensor, layer.bias) for layer in layers])
    if is_plain_call(x, biases):
        return _product(first, x, row_counts, None if biases is None else biases.detach())
    assert first.format is not None
    result: torch.Tensor = operators.grouped_linear(
        autocast(x), first.packed, biases, row_counts, *first.format.arguments(), first.compute
    )
    return result


def _product(
    layer: ExpertLinear, x: torch.Tensor, row_counts: torch.Tensor, biases: torch.Tensor | None
) -> torch.Tensor:
    x = autocast(x).detach().resolve_neg()
    weight = layer._current_view().weight
    result: torch.Tensor = qcore.grouped_linear(x, weight, row_counts, biases, compute=layer.compute)
    return result
