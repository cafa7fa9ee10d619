"""Joins linear layers of one input over one weight that holds the rows of all of them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from qcore.quantized_tensor import concatenate
from qcore.torch import Linear
from qcore.torch.weighted import ModuleWeight


def difference_of(modules: Sequence[Linear]) -> str:
    """Return what keeps layers from computing parts of one result, "compute int8 and float"; empty if nothing does."""
    for name in ("compute", "activation", "in_features"):
        found = list(dict.fromkeys(getattr(each, name) for each in modules))
        if len(found) > 1:
            return f"{name} {' and '.join(map(str, found))}"
    return ""


def have_one_format(modules: Sequence[Linear]) -> bool:
    """Return whether the weights of layers have one format; GGUF's K_M files have another one for v."""
    return len({(each.bits, each.block_size, each.weight.scheme, each.encoding) for each in modules}) == 1


class JointLinear(torch.nn.Module):
    """Holds the weight that several :class:`RowsLinear` share; its own tensors are not in a state_dict, theirs are.

    Args:
        modules: layers of the same K and options; their rows are copied in this order.
    """

    def __init__(self, modules: Sequence[Linear]) -> None:
        super().__init__()
        self.sizes = [each.out_features for each in modules]
        self.biased = [each.bias is not None for each in modules]
        bias = None
        if any(self.biased):
            given = next(each.bias for each in modules if each.bias is not None)
            bias = torch.cat([self._bias_of(each, given) for each in modules])
        weight = concatenate([each.weight for each in modules])
        self.linear = Linear(weight, bias, compute=modules[0].compute, dtype=modules[0].dtype)
        self._pending: tuple[Any, int, dict[int, torch.Tensor]] | None = None

    @staticmethod
    def _bias_of(module: Linear, like: torch.Tensor) -> torch.Tensor:
        if module.bias is None:
            return torch.zeros(module.out_features, dtype=like.dtype, device=like.device)
        return module.bias.detach()

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the rows of layer ``number``: the first, and the exclusive end."""
        begin = sum(self.sizes[:number])
        return begin, begin + self.sizes[number]

    def part(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """Return the outputs of layer ``number`` for x [..., K].

        The product is computed for all layers when the first of them is called with x, and kept until the last has
        had its part.
        """
        if torch.compiler.is_compiling() or x.is_inference():
            begin, end = self.bounds(number)
            result: torch.Tensor = self.linear(x)[..., begin:end]
            return result
        if self._pending is not None:
            of, version, parts = self._pending
            if of() is x and version == x._version and number in parts:
                taken = parts.pop(number)
                if not parts:
                    self._pending = None
                return taken
        made = dict(enumerate(torch.split(self.linear(x), self.sizes, dim=-1)))
        taken = made.pop(number)
        self._pending = weakref.ref(x), x._version, made
        return taken

    def separate(self, number: int) -> Linear:
        """Return layer ``number`` with a weight of its own."""
        begin, end = self.bounds(number)
        bias = self.linear.bias
        bias = bias[begin:end] if bias is not None and self.biased[number] else None
        weight = self.linear.weight.slice_rows(begin, end)
        made = Linear(weight, bias, compute=self.linear.compute, dtype=self.linear.dtype)
        made.train(self.training)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pending": None}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return no tensors, because the layers that share this weight save their rows."""
        return kwargs.get("destination", args[0] if args else {})

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load nothing, see :meth:`RowsLinear._load_from_state_dict`."""


class RowsLinear(Linear):
    """Computes a linear layer whose weight is some rows of a :class:`JointLinear`.

    Its results and its state_dict are those of the layer that it replaces. Called with the same x as its neighbors, it
    takes its part of one product.

    Args:
        joint: the weight.
        number: which of its layers this is.
    """

    def __init__(self, joint: JointLinear, number: int) -> None:
        torch.nn.Module.__init__(self)
        self.joint, self.number = joint, number
        self.shape = (joint.sizes[number], joint.linear.shape[1])
        self.bits, self.block_size = joint.linear.bits, joint.linear.block_size
        self.compute, self.activation = joint.linear.compute, None
        self.encoding = joint.linear.encoding

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the float weight."""
        return self.joint.linear.dtype

    @property
    def weight(self) -> ModuleWeight:
        """Return a copy of the layer's rows."""
        begin, end = self.joint.bounds(self.number)
        return ModuleWeight.of(self.joint.linear.weight.slice_rows(begin, end), self.dtype)

    @property
    def bias(self) -> torch.Tensor | None:  # type: ignore[override]
        """Return the layer's part of the bias."""
        begin, end = self.joint.bounds(self.number)
        bias = self.joint.linear.bias
        return bias[begin:end] if bias is not None and self.joint.biased[self.number] else None

    def separate(self) -> Linear:
        """Return the layer with a weight of its own."""
        return self.joint.separate(self.number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``; arguments and errors are those of :class:`qcore.torch.Linear`."""
        return self.joint.part(x, self.number)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return torch.nn.Module._apply(self, fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.separate()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if any(key.startswith(prefix) for key in state_dict):
            error_msgs.append(
                f"{prefix[:-1]} shares one weight with its neighbors since qcore.transformers.fuse_, expected an "
                "unfused model: call qcore.transformers.unfuse_(model) before load_state_dict"
            )

    def extra_repr(self) -> str:
        scheme = self.joint.linear.weight.scheme
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.joint.biased[self.number]}, "
            f"bits={self.bits}, block_size={self.block_size}, {scheme}, compute={self.compute!r}"
        )


def join(places: Sequence[tuple[torch.nn.Module, str]]) -> None:
    """Replace the linear layers in several places, (parent, attribute), by rows of one weight.

    A single layer stays as it is, and so do layers whose weights have different formats.
    """
    modules: list[Any] = [parent._modules[name] for parent, name in places]
    if len(modules) == 1 or not have_one_format(modules):
        return
    joint = JointLinear(modules)
    joint.train(places[0][0].training)
    for number, (parent, name) in enumerate(places):
        rows = RowsLinear(joint, number)
        rows.train(parent.training)
        parent._modules[name] = rows


def split(places: Sequence[tuple[torch.nn.Module, str]]) -> None:
    """Replace rows of one weight by layers with weights of their own: undoes :func:`join`."""
    for parent, name in places:
        module = parent._modules[name]
        if isinstance(module, RowsLinear):
            parent._modules[name] = module.separate()
