"""The layers of a model that can be quantised, and their places."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from qcore.torch.lut import table_name
from qcore.torch.module import QuantizedModule

QUANTIZABLE = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GRU)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Layer:
    """A module and all places that hold it."""

    name: str
    module: torch.nn.Module
    places: list[tuple[torch.nn.Module, str]] = field(default_factory=list)
    reason: str = ""
    """Why it is to be left; empty if it is not."""
    fused: dict[int, int] = field(default_factory=dict)
    """What ``activation_relu_or_gelu`` was, by the id of a TransformerEncoderLayer."""

    def put(self, module: torch.nn.Module) -> None:
        """``module`` in all places."""
        for parent, attribute in self.places:
            parent._modules[attribute] = module
            if isinstance(parent, torch.nn.TransformerEncoderLayer):
                # Its fused path reads the weights of its layers itself; with 0 it calls them.
                fused = self.fused.setdefault(id(parent), parent.activation_relu_or_gelu)
                parent.activation_relu_or_gelu = 0 if isinstance(module, QuantizedModule) else fused


def layers_of(model: torch.nn.Module, skip: Sequence[str], activations: bool) -> list[Layer]:
    """Layers in the model's order, each with the reason if it must be left."""
    found: dict[int, Layer] = {}
    for path, parent in model.named_modules():
        for attribute, child in parent._modules.items():
            if child is None:
                continue
            name = f"{path}.{attribute}" if path else attribute
            if id(child) in found:
                found[id(child)].places.append((parent, attribute))
            elif isinstance(child, QUANTIZABLE) or (activations and table_name(child) is not None):
                found[id(child)] = Layer(name, child, [(parent, attribute)])
                found[id(child)].reason = _reason(name, parent, child, skip)
    order = {id(module): number for number, module in enumerate(model.modules())}
    return sorted(found.values(), key=lambda layer: order[id(layer.module)])


def _reason(name: str, parent: torch.nn.Module, child: torch.nn.Module, skip: Sequence[str]) -> str:
    for pattern in skip:
        if fnmatch.fnmatchcase(name, pattern):
            return f"skip has {pattern!r}"
    if isinstance(parent, torch.nn.MultiheadAttention):
        return "torch.nn.MultiheadAttention reads the weight itself"
    if isinstance(child, QUANTIZABLE) and type(child) not in QUANTIZABLE:
        return f"a subclass of {next(kind.__name__ for kind in QUANTIZABLE if isinstance(child, kind))}"
    if child._forward_hooks or child._forward_pre_hooks:
        return "it has forward hooks"
    if isinstance(child, torch.nn.Conv2d) and child.padding_mode != "zeros":
        return f"padding_mode is {child.padding_mode!r}"
    if isinstance(child, torch.nn.GRU) and child.dropout > 0 and child.training:
        return "dropout while training"
    for parameter in child.parameters():
        if parameter.dtype not in _FLOATS:
            return f"weights are {parameter.dtype}"
        if parameter.numel() == 0 or parameter.is_meta:
            return "weights are empty"
    return ""


def ties_of(model: torch.nn.Module, layers: Sequence[Layer]) -> dict[int, str]:
    """For the id of a layer, a module outside of them that has the same weight."""
    inside = {id(layer.module): layer for layer in layers if not layer.reason}
    others = {
        id(parameter): name
        for name, module in model.named_modules()
        if id(module) not in inside
        for parameter in module._parameters.values()
        if parameter is not None
    }
    return {
        key: others[id(layer.module.weight)]
        for key, layer in inside.items()
        if isinstance(layer.module, (torch.nn.Linear, torch.nn.Conv2d)) and id(layer.module.weight) in others
    }
