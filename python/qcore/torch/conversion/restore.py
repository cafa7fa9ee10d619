"""Loads the state of a quantized model into the float model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from qcore import _checks, _core
from qcore._options import named_arguments
from qcore.torch.attention import MultiheadAttention
from qcore.torch.conv1d import Conv1d
from qcore.torch.conversion.hosts import tell_transformers
from qcore.torch.conversion.layers import disable_fast_paths, forget_ties, untie
from qcore.torch.embedding import Embedding
from qcore.torch.experts import Experts
from qcore.torch.gru import GRU
from qcore.torch.lstm import LSTM
from qcore.torch.lut import LutActivation
from qcore.torch.module import CONFIG, QuantizedModule, read_config
from qcore.torch.rotated import RotatedLinear
from qcore.torch.scaled_embedding import ScaledEmbedding
from qcore.torch.weighted import Conv2d, Linear


@named_arguments("restore_")
def restore_(model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Load the state_dict of a model that :func:`quantize_` changed into the float model, in any process.

    Args:
        model: as it was before ``quantize_``; its values don't matter, and it may be on the meta device: what the state
            holds is then made on the state's devices. Layers with a quantized state are replaced.
        state_dict: all of ``quantized_model.state_dict()``.

    Raises:
        QcoreValueError: a quantized state is damaged, or belongs to no module of the model, or a tensor of the model is
            on the meta device and not in the state (buffers that are not persistent are not). Nothing is changed then.
        RuntimeError: of ``load_state_dict``, where the rest does not fit.
    """
    if not isinstance(model, torch.nn.Module) or not isinstance(state_dict, Mapping):
        raise _core.QcoreTypeError(
            f"restore_: model is a {type(model).__name__} and state_dict a {type(state_dict).__name__}, expected a "
            "torch.nn.Module and a dictionary: restore_(model, torch.load(file))"
        )
    made: dict[int, QuantizedModule] = {}
    places: list[tuple[torch.nn.Module, str, int]] = []
    whole: list[str] = []
    for prefix in _prefixes(state_dict):
        if prefix.startswith(tuple(whole)):
            continue
        path, _, attribute = prefix[:-1].rpartition(".")
        parent, module = _found(model, path, attribute)
        if module is None:
            raise _core.QcoreValueError(
                f"restore_: the state has {prefix + CONFIG}, expected a module {prefix[:-1]} in the model"
            )
        if id(module) not in made:
            made[id(module)] = _restored(module, state_dict, prefix)
        if isinstance(made[id(module)], (Experts, MultiheadAttention, RotatedLinear)):
            whole.append(prefix)
        places.append((parent, attribute, id(module)))
    replaced = {
        f"{path}." if path else "" for path, module in model.named_modules(remove_duplicate=False) if id(module) in made
    }
    _check_meta(model, state_dict, tuple(replaced))
    for parent, attribute, key in places:
        made[key].train(parent._modules[attribute].training if parent._modules[attribute] else False)
    for parent, attribute, key in places:
        parent._modules[attribute] = made[key]
    _materialize(model, state_dict)
    _untie(model, state_dict)
    disable_fast_paths(model)
    forget_ties(model)
    model.load_state_dict(state_dict)
    tell_transformers(model)


def _kinds() -> dict[str, Any]:
    kinds = (
        *(Linear, RotatedLinear, Conv2d, Conv1d, Embedding, ScaledEmbedding),
        *(GRU, LSTM, LutActivation, Experts, MultiheadAttention),
    )
    return {kind.kind: kind for kind in kinds}


def _prefixes(state_dict: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the prefixes of all quantized states, those of the modules above first."""
    found = [key[: -len(CONFIG)] for key in state_dict if key.rpartition(".")[2] == CONFIG and "." in key]
    return sorted(found, key=lambda prefix: prefix.count("."))


def _found(model: torch.nn.Module, path: str, attribute: str) -> tuple[Any, torch.nn.Module | None]:
    try:
        parent = model.get_submodule(path)
    except AttributeError:
        return None, None
    return parent, parent._modules.get(attribute)


def _restored(module: torch.nn.Module, state_dict: Mapping[str, torch.Tensor], prefix: str) -> QuantizedModule:
    kinds = _kinds()
    kind = _checks.choice(
        read_config(state_dict, prefix).get("kind"), kinds, f"restore_: the kind in {prefix + CONFIG}"
    )
    if hasattr(kind, "from_state_dict_and_float"):
        made: QuantizedModule = kind.from_state_dict_and_float(module, state_dict, prefix)
    else:
        made = kind.from_state_dict(state_dict, prefix)
    return made


def _check_meta(model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor], replaced: tuple[str, ...]) -> None:
    """Raise QcoreValueError if a tensor is on the meta device and the state has no values for it."""
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    given = {id(tensor) for name, tensor in tensors if name in state_dict}
    lost = [
        name
        for name, tensor in tensors
        if tensor.is_meta and id(tensor) not in given and not name.startswith(replaced or ("\0",))
    ]
    if lost:
        more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
        raise _core.QcoreValueError(
            f"restore_: {', '.join(lost[:8])}{more} of the model: on the meta device and not in the state, expected "
            "values for them: make the model on a device with memory"
        )


def _untie(model: Any, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Give the head of a language model a weight of its own if the state has another one than for the embedding."""
    if not (hasattr(model, "get_output_embeddings") and hasattr(model, "config")):
        return
    head = model.get_output_embeddings()
    if not getattr(model.config, "tie_word_embeddings", False) or head is None:
        return
    names = {id(module): name for name, module in model.named_modules()}
    ends = [names.get(id(module), "") for module in (head, model.get_input_embeddings())]
    for part in ("weight", "codes", "scales"):
        given = [state_dict.get(f"{name}.{part}") for name in ends]
        if given[0] is not None and given[1] is not None and not torch.equal(given[0], given[1]):
            untie(model, head)
            return


def _materialize(model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Allocate memory for the parameters and buffers on the meta device; shared ones stay shared."""
    made: dict[int, torch.Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QuantizedModule):
            continue
        prefix = f"{path}." if path else ""
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in made:
                    device = state_dict[prefix + name].device if prefix + name in state_dict else "cpu"
                    memory: torch.Tensor = torch.empty_like(tensor, device=device)
                    if isinstance(tensor, torch.nn.Parameter):
                        memory = torch.nn.Parameter(memory, requires_grad=tensor.requires_grad)
                    memory.__dict__.update(tensor.__dict__)
                    made[id(tensor)] = memory
                tensors[name] = made[id(tensor)]
