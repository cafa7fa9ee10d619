"""Finds the parts of a decoder-only transformer by the names and types of its modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qcore import _core
from qcore._options import Compute
from qcore.torch import Linear
from qcore.transformers.fuse.weights import RowsLinear, difference_of

Place = tuple[torch.nn.Module, str]
"""Type of a place: a module and the name of one of its children."""

_LAYER_NORMS = (
    # Norms of the input, after attention, before the MLP and after the MLP.
    ("input_layernorm", None, "post_attention_layernorm", None),
    ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
)


@dataclass
class LayerParts:
    """Holds the modules of one decoder layer, and what ``observation`` finds out about it."""

    name: str
    module: torch.nn.Module
    attention: torch.nn.Module
    input_norm: torch.nn.Module | None
    post_attention_norm: torch.nn.Module | None
    mlp_norm: torch.nn.Module | None
    post_mlp_norm: torch.nn.Module | None
    q_norm: torch.nn.Module | None
    k_norm: torch.nn.Module | None
    qkv: list[Place]
    out: Place
    gate_up: list[Place]
    down: Place
    activation: Any
    window: int = 0
    rotary: int = -1

    def norms(self) -> Iterable[tuple[str, torch.nn.Module]]:
        """Yield the norms that there are, with names."""
        for name in ("input_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm", "q_norm", "k_norm"):
            if getattr(self, name) is not None:
                yield f"{self.name}: {name}", getattr(self, name)

    def linears(self) -> list[Linear]:
        """Return the linear layers in the order qkv, out, gate and up, down."""
        return [parent._modules[name] for parent, name in (*self.qkv, self.out, *self.gate_up, self.down)]


@dataclass
class StackParts:
    """Holds the modules of a model, and the numbers that ``observation`` finds out about it."""

    base: torch.nn.Module
    layers: list[LayerParts]
    final_norm: torch.nn.Module
    embedding: torch.nn.Module
    rotary: torch.nn.Module
    head: torch.nn.Module
    compute: Compute
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    eps: float = 1e-6
    norm_offset: float = 0.0
    round_normalized: bool = False
    activation: str = "silu"
    attention_scale: float = 1.0
    attention_soft_cap: float = 0.0
    input_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_soft_cap: float = 0.0
    interleaved: bool = False
    repeat_angles: bool = False
    """Tells whether the rotary module gives angles as halves although pairs are interleaved."""
    tables: list[str | None] = field(default_factory=list)
    """``layer_type`` argument of the rotary module for each rotary table."""


def error(message: str) -> _core.QcoreValueError:
    """Return the error of fuse_ with this message."""
    return _core.QcoreValueError(f"fuse_: {message}")


def parts_of(model: Any) -> StackParts:
    """Return the parts of a quantized model.

    Raises:
        QcoreValueError: a module that a decoder of this kind has is missing, of another type, or there is one too many.
    """
    base = model.base_model
    for name in ("embed_tokens", "layers", "norm", "rotary_emb"):
        if not isinstance(getattr(base, name, None), torch.nn.Module):
            raise error(f"{type(base).__name__} has no module {name!r}, expected a decoder-only transformer")
    head = model.get_output_embeddings()
    if head is None or base is model:
        raise error(f"model is a {type(model).__name__}, expected one with a language modeling head")
    _only(base, ("embed_tokens", "layers", "norm", "rotary_emb"), "model")
    prefix = f"{model.base_model_prefix}.layers"
    layers = [_layer(f"{prefix}.{number}", module) for number, module in enumerate(base.layers)]
    if not layers:
        raise error("model has no layers, expected at least one")
    modes = {each.compute for layer in layers for each in layer.linears()}
    if len(modes) > 1:
        raise error(f"the layers have compute {' and '.join(sorted(modes))}, expected one mode for all")
    return StackParts(base, layers, base.norm, base.embed_tokens, base.rotary_emb, head, modes.pop())


def _layer(name: str, module: torch.nn.Module) -> LayerParts:
    attention, mlp = module._modules.get("self_attn"), module._modules.get("mlp")
    if attention is None or mlp is None:
        raise error(f"{name} has the modules {_names(module)}, expected self_attn and mlp")
    norms = _norms(name, module)
    qkv = _projections(f"{name}.self_attn", attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj")
    out = _projections(f"{name}.self_attn", attention, (), "o_proj")[0]
    gate_up = _projections(f"{name}.mlp", mlp, ("gate_proj", "up_proj"), "gate_up_proj")
    down = _projections(f"{name}.mlp", mlp, (), "down_proj")[0]
    _only(module, ("self_attn", "mlp", *(each for each in norms if each)), name)
    _only(attention, (*(each for _, each in qkv), "o_proj", "q_norm", "k_norm"), f"{name}.self_attn")
    _only(mlp, (*(each for _, each in gate_up), "down_proj"), f"{name}.mlp")
    q_norm, k_norm = attention._modules.get("q_norm"), attention._modules.get("k_norm")
    if (q_norm is None) != (k_norm is None):
        raise error(f"{name}.self_attn has one of q_norm and k_norm, expected both or none")
    activation = next((getattr(mlp, each) for each in ("act_fn", "activation_fn", "act") if hasattr(mlp, each)), None)
    if activation is None:
        raise error(f"{name}.mlp has no act_fn or activation_fn, expected the activation of the gate")
    first, after_attention, before_mlp, after_mlp = (None if each is None else module._modules[each] for each in norms)
    return LayerParts(
        name, module, attention, first, after_attention, before_mlp, after_mlp, q_norm, k_norm, qkv, out, gate_up, down,
        activation,
    )  # fmt: skip


def _norms(name: str, module: torch.nn.Module) -> tuple[str | None, ...]:
    has = {each for each in module._modules if each.endswith("norm")}
    for names in _LAYER_NORMS:
        if has == {each for each in names if each}:
            return names
    raise error(
        f"{name} has the norms {', '.join(sorted(has)) or 'none'}, expected input_layernorm and "
        "post_attention_layernorm, with pre_feedforward_layernorm and post_feedforward_layernorm in Gemma 2 and 3"
    )


def _projections(where: str, parent: torch.nn.Module, separate: Sequence[str], whole: str) -> list[Place]:
    names = [whole] if whole in parent._modules else list(separate)
    for name in names or [whole]:
        module = parent._modules.get(name)
        if isinstance(module, RowsLinear):
            raise error(f"{where}.{name} is fused already, expected an unfused model")
        if not isinstance(module, Linear):
            given = "missing" if module is None else f"a {type(module).__module__}.{type(module).__name__}"
            raise error(
                f"{where}.{name} is {given}, expected a qcore.torch.Linear: qcore.torch.quantize_(model) makes them"
            )
        if module.activation is not None:
            raise error(f"{where}.{name} has activation {module.activation!r}, expected None")
        if module._forward_hooks or module._forward_pre_hooks:
            raise error(f"{where}.{name} has forward hooks, expected none: a fused layer would not call them")
    if len(names) > 1 and (difference := difference_of([parent._modules[name] for name in names])):
        raise error(f"{where}: {', '.join(names)} have {difference}, expected the same for all of them")
    return [(parent, name) for name in names]


def _only(module: torch.nn.Module, names: Sequence[str], where: str) -> None:
    for name, child in module._modules.items():
        if name not in names and child is not None and any(True for _ in child.parameters()):
            raise error(f"{where} has a module {name!r} ({type(child).__name__}), expected {', '.join(names)}")
    if any(parameter is not None for parameter in module._parameters.values()):
        raise error(f"{where} has parameters {', '.join(module._parameters)} of its own, expected none")


def _names(module: torch.nn.Module) -> str:
    return ", ".join(module._modules) or "none"
