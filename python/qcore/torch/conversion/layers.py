"""Finds the layers of a model that can be quantized, and their places."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from qcore import _core
from qcore.torch.conversion.patterns import first_match
from qcore.torch.conversion.reads import reads_of
from qcore.torch.conversion.rules import Rule, Settings, refusal, rule_of, unanswered
from qcore.torch.module import QuantizedModule
from qcore.torch.training.layers import TrainableLayers

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


@dataclass
class Layer:
    """Holds a module that a rule applies to, and all places in the model that refer to it."""

    names: list[str]
    """Names of the module in the model, in the model's order."""
    module: Any
    """Holds the float module; None once its weight has been freed."""
    rule: Rule | None
    places: list[tuple[torch.nn.Module, str]] = field(default_factory=list)
    reason: str = ""
    """Says why the layer is left in floating point; empty if it is quantized."""
    asked: bool = False
    """Tells whether the caller asked to leave the layer."""
    kind: str = ""
    parameters: int = 0
    nbytes: int = 0
    pattern: str | None = None
    """Key of ``layers`` that chose the settings; None if none did."""
    settings: Settings | None = None
    notes: list[str] = field(default_factory=list)
    """Remarks for the report."""
    shared: int | None = None
    """Number that the layers with the same weight have in common; None for a weight of one layer."""
    trainable: bool = False
    """Tells whether it becomes a recurrent layer that keeps its float weights to be trained."""
    folded: bool = False
    """Tells whether a rotation of its input, or of an embedding's output, is folded into its weight."""

    def __post_init__(self) -> None:
        self.kind = _class_name(self.module)
        parameters = known(self.module.parameters())
        self.nbytes = sum(each.nbytes for each in (*parameters, *self.module.buffers()))
        self.parameters = sum(each.numel() for each in parameters)

    @property
    def name(self) -> str:
        """Return the first name of the module."""
        return self.names[0]

    def put(self, module: torch.nn.Module) -> None:
        """Put a module into all places."""
        for parent, attribute in self.places:
            parent._modules[attribute] = module


def known(parameters: Iterable[_Tensor]) -> list[_Tensor]:
    """Return the parameters or buffers that have a size: those of lazy modules have none yet."""
    return [each for each in parameters if not isinstance(each, torch.nn.parameter.UninitializedTensorMixin)]


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return what identifies the memory of a tensor while it or a weak reference lives; None without one memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # torch raises these for tensors without a storage, such as sparse ones
        return None


class StorageOwners:
    """Counts how many parameters and buffers of a model's modules have each memory.

    A module in several places of the model counts once. Lazy parameters, which have no memory yet, and tensors on the
    meta device are not counted.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._counts: Counter[int | None] = Counter()
        for module in model.modules():
            tensors = [*module._parameters.values(), *module._buffers.values()]
            present = known(each for each in tensors if each is not None)
            self._counts.update(storage_key(each) for each in present if not each.is_meta)

    def is_shared(self, tensor: torch.Tensor, allowed: int = 1) -> bool:
        """Return whether more parameters and buffers than allowed have the memory of a tensor."""
        key = storage_key(tensor)
        return key is not None and self._counts[key] > allowed


def layers_of(model: torch.nn.Module, activations: bool) -> list[Layer]:
    """Return the layers in the model's order, without reasons."""
    found: dict[int, Layer] = {}
    for name, parent, attribute, child in _places(model):
        if id(child) in found:
            found[id(child)].names.append(name)
            if (parent, attribute) not in found[id(child)].places:
                found[id(child)].places.append((parent, attribute))
            continue
        rule = rule_of(child, activations)
        if rule is not None or (isinstance(child, torch.jit.ScriptModule) and any(True for _ in child.parameters())):
            found[id(child)] = Layer([name], child, rule, [(parent, attribute)])
    return list(found.values())


def _places(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.nn.Module]]:
    """Yield name, parent, attribute and module of each place, in order; not below modules that are replaced whole."""
    stack: list[tuple[str, torch.nn.Module, tuple[int, ...]]] = [("", model, ())]
    while stack:
        path, parent, above = stack.pop()
        below = []
        for attribute, child in parent._modules.items():
            if child is None:
                continue
            name = f"{path}.{attribute}" if path else attribute
            yield name, parent, attribute, child
            rule = rule_of(child, False)
            is_whole = isinstance(child, (torch.jit.ScriptModule, QuantizedModule)) or (rule and rule.is_whole)
            if not is_whole and id(child) not in above:
                below.append((name, child, (*above, id(parent))))
        stack += reversed(below)


def explain(model: torch.nn.Module, layers: list[Layer], exclude: tuple[str, ...], embeddings: bool) -> None:
    """Set ``reason`` of the layers that must be left in floating point."""
    reads = reads_of(model)
    for layer in layers:
        pattern = first_match(layer.names, exclude)
        if pattern is not None:
            layer.reason, layer.asked = f"exclude has {pattern!r}", True
        elif layer.rule is None:
            layer.reason = "it is a scripted module"
        elif layer.rule.kind == "Embedding" and not embeddings:
            layer.reason, layer.asked = "embeddings is False", True
        else:
            layer.reason = refusal(layer.module, layer.rule)
        if layer.reason or layer.rule is None:
            continue
        for read in sorted(reads.get(id(layer.module), ()), key=repr):
            if unanswered(layer.rule, read):
                layer.reason = f"{read.reader} reads its {'.'.join((read.attribute, *read.rest)).rstrip('.*')}"
                break


def find_shared(layers: list[Layer]) -> None:
    """Set ``shared`` of the layers whose weight another layer has too."""
    numbers: dict[tuple[int, str], int] = {}
    for layer in layers:
        if layer.rule is not None and layer.rule.has_weight and not layer.reason:
            weight = layer.module.weight
            key = id(weight), "" if weight.dim() == 2 else layer.rule.kind
            layer.shared = numbers.setdefault(key, len(numbers))


def limit_rotation(layers: list[Layer]) -> None:
    """Take the rotation from the settings of layers that it is folded into, or not linear with a weight of their own.

    Raises:
        QcoreValueError: a layer that is to be rotated is not on the CPU.
    """
    owners = Counter(layer.shared for layer in layers)
    for layer in layers:
        if layer.settings is None or layer.settings.rotation is None or layer.reason:
            continue
        is_shared = layer.shared is not None and owners[layer.shared] > 1
        is_linear = layer.rule is not None and layer.rule.kind in ("Linear", "Conv1D")
        if not is_linear or is_shared or layer.folded:
            layer.settings = replace(layer.settings, rotation=None)
        elif layer.module.weight.device.type != "cpu":
            raise _core.QcoreValueError(
                f"quantize_: {layer.name} is on {layer.module.weight.device}, expected the CPU with rotation="
                f"{layer.settings.rotation!r}: the rotation has CPU kernels only; layers={{{layer.name!r}: "
                "{'rotation': None}}} leaves it as it is"
            )


def untie(model: Any, head: Any) -> None:
    """Give the head of a model of transformers a weight of its own, which is no longer tied to the embedding's.

    A packed weight is its own already.
    """
    if isinstance(head.weight, torch.nn.Parameter):
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
    model.config.tie_word_embeddings = False
    owned = {f"{name}.weight" for name, module in model.named_modules() if module is head}
    for attribute in ("_tied_weights_keys", "all_tied_weights_keys"):
        ties = getattr(model, attribute, None)
        if isinstance(ties, dict):
            setattr(model, attribute, {key: each for key, each in ties.items() if not {key, each} & owned})


def outside_weights(model: torch.nn.Module, layers: list[Layer]) -> dict[int, str]:
    """Return, for the number of a shared weight, a module that keeps it in floating point."""
    inside = {id(layer.module): layer for layer in layers if layer.shared is not None}
    numbers = {id(layer.module.weight): layer.shared for layer in inside.values()}
    found: dict[int, str] = {}
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        for parameter in module._parameters.values():
            number = numbers.get(id(parameter))
            if number is not None:
                found.setdefault(number, name)
    return found


def float_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters of a model, without the float weights of recurrent layers that have integers of them."""
    trained = {id(own) for each in model.modules() if isinstance(each, TrainableLayers) for own in each.parameters()}
    return [each for each in known(model.parameters()) if id(each) not in trained]


def left_modules(model: torch.nn.Module, layers: list[Layer]) -> list[tuple[str, torch.nn.Module]]:
    """Return modules with parameters of their own that are no layer and not below one, by name."""
    covered = {id(below) for layer in layers for below in layer.module.modules()}
    return [
        (name, module)
        for name, module in model.named_modules()
        if id(module) not in covered
        and not isinstance(module, (QuantizedModule, TrainableLayers))
        and any(parameter is not None for parameter in module._parameters.values())
    ]


def disable_fast_paths(model: torch.nn.Module) -> Callable[[], None]:
    """Make torch's transformer encoders call their layers, because their fused path reads float weights itself.

    Returns:
        A function that restores the fused path.
    """
    before: list[tuple[torch.nn.Module, str, Any]] = []
    flags = {
        torch.nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
        torch.nn.TransformerEncoder: ("use_nested_tensor", False),
    }
    for module in model.modules():
        for kind, (attribute, value) in flags.items():
            if isinstance(module, kind) and any(isinstance(below, QuantizedModule) for below in module.modules()):
                before.append((module, attribute, getattr(module, attribute, None)))
                setattr(module, attribute, value)

    def undo() -> None:
        for module, attribute, value in before:
            setattr(module, attribute, value)

    return undo


def forget_ties(model: torch.nn.Module) -> None:
    """Drop from a model of transformers the ties of parameters that quantized modules have replaced.

    ``tie_weights`` follows names of parameters; those of a quantized layer are gone, and layers that shared a weight
    share its packed one.
    """
    for module in model.modules():
        for attribute in ("_tied_weights_keys", "all_tied_weights_keys"):
            ties = getattr(module, attribute, None)
            if not isinstance(ties, dict) or not ties:
                continue
            known = {each for each, _ in module.named_parameters(remove_duplicate=False)}
            known |= {each for each, _ in module.named_buffers(remove_duplicate=False)}
            if attribute == "_tied_weights_keys" and hasattr(module, "get_expanded_tied_weights_keys"):
                with contextlib.suppress(Exception):  # transformers' own code may raise; the plain names are used then
                    ties = module.get_expanded_tied_weights_keys(all_submodels=False)
            kept = {target: source for target, source in ties.items() if target in known and source in known}
            if kept != getattr(module, attribute):
                setattr(module, attribute, kept)


def _class_name(module: torch.nn.Module) -> str:
    return str(getattr(module, "original_name", type(module).__name__))
