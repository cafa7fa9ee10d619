"""Writes the state of a model with packed weights for save_pretrained, in the layout of docs/checkpoints.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightRenaming, apply_renamings

from qcore import _core
from qcore.formats.checkpoint import layout
from qcore.torch.experts import Experts
from qcore.torch.module import QuantizedModule
from qcore.torch.weighted import WeightedModule
from qcore.transformers.modules import ReorderedLinear, packed_modules


def state_of(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors that are saved, by name, and the files' metadata.

    A weight X.weight is X.weight.codes, X.weight.scales and so on. A weight that several modules share is saved once.
    Biases of experts, and what their module has beside its projections, have the names of the float model.

    Args:
        model: a model of transformers, with packed modules or without.

    Raises:
        QcoreValueError: a quantized module is of another kind, or applies an activation, which the files have no
            place for.
    """
    _check_kinds(model)
    state: dict[str, torch.Tensor] = {}
    described: dict[str, layout.Description] = {}
    aliases = _aliases(model)
    inside: set[str] = set()
    mixtures = {f"{path}.projections.": module for path, module in model.named_modules() if isinstance(module, Experts)}
    for path, module in mixtures.items():
        state |= _expert_biases(path, module)
    for name, module in packed_modules(model):
        layer = module.linear if isinstance(module, ReorderedLinear) else module
        if getattr(layer, "activation", None) is not None:
            raise _core.QcoreValueError(
                f"save_pretrained: {name} applies {layer.activation!r}, expected a layer without an activation"
            )
        inside.add(name)
        if isinstance(module, ReorderedLinear):
            inside.add(f"{name}.linear")
        bias = getattr(layer, "bias", None)
        if bias is not None and not name.startswith(tuple(mixtures)):
            state[f"{name}.bias"] = bias.detach()
        if name in aliases:
            continue
        weight = module.weight.to("cpu")
        described[f"{name}.weight"] = layout.Description.of(weight)
        parts = layout.encode(weight, *layout.parameter_dtypes(weight))
        state |= {f"{name}.weight.{part}": torch.from_numpy(values) for part, values in parts.items()}
    for path, module in model.named_modules():
        if path in inside:
            continue
        prefix = f"{_float_path(path, mixtures)}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                state[prefix + name] = parameter.detach()
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                state[prefix + name] = buffer
    names = _saved_names(model, list(described))
    metadata = layout.metadata_of({names[name]: about for name, about in described.items()})
    metadata[layout.KEY] = metadata.pop("format")
    return state, metadata


def _expert_biases(prefix: str, module: Experts) -> dict[str, torch.Tensor]:
    """Return the biases [E, N] of the projections of experts by their names in the float model."""
    biases = {
        name: [getattr(layer, "bias", None) for layer in cast(Any, layers)]
        for name, layers in module.projections.items()
    }
    path = prefix.removesuffix("projections.")
    return {
        f"{path}{name}_bias": torch.stack([bias.detach() for bias in each if bias is not None])
        for name, each in biases.items()
        if each[0] is not None
    }


def _float_path(path: str, mixtures: Mapping[str, Experts]) -> str:
    """Return the name in the float model of a module, which may be within the shell of a module of experts."""
    for prefix in mixtures:
        shell = f"{prefix.removesuffix('projections.')}shell"
        if path == shell or path.startswith(f"{shell}."):
            return f"{prefix.removesuffix('.projections.')}{path.removeprefix(shell)}"
    return path


def _aliases(model: torch.nn.Module) -> set[str]:
    """Return the names of packed modules whose weight an earlier module shares."""
    seen: dict[Any, str] = {}
    found = set()
    for name, module in packed_modules(model):
        layer = module.linear if isinstance(module, ReorderedLinear) else module
        packed, expert = layer.packed, getattr(layer, "expert", None)
        if seen.setdefault((packed.device, packed.data_ptr(), expert), name) != name:
            found.add(name)
    return found


def _check_kinds(model: torch.nn.Module) -> None:
    """Raise QcoreValueError for quantized modules that from_pretrained could not make again."""
    for name, module in model.named_modules():
        if isinstance(module, QuantizedModule) and not isinstance(module, (WeightedModule, Experts)):
            raise _core.QcoreValueError(
                f"save_pretrained: {name} is a {type(module).__name__}, expected layers with one packed weight, or "
                "experts: torch.save(model.state_dict()) and qcore.torch.restore_ keep all quantized modules"
            )


def _saved_names(model: Any, names: list[str]) -> dict[str, str]:
    """Return the names in the files: those that transformers gives the parts when it saves."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None and isinstance(model, PreTrainedModel):
        # transformers does the same for a model that was not loaded.
        conversions = get_model_conversion_mapping(model, add_legacy=False)
        conversions = [each for each in conversions if not isinstance(each, PrefixChange)]
    if conversions is None:
        return {name: name for name in names}
    reverse = [each.reverse_transform() for each in conversions[::-1] if isinstance(each, WeightRenaming)]
    return {name: apply_renamings(f"{name}.codes", reverse).removesuffix(".codes") for name in names}
