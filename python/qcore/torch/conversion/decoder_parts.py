"""Finds the parts of a decoder-only language model that a rotation of its residual stream changes.

The stream is the sum that each layer normalizes, reads and adds to. A rotation of it can be folded into the weights if
all that reads it are linear layers behind RMS norms, and all that writes it an embedding and linear layers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qcore.torch.conversion.layers import StorageOwners
from qcore.torch.conversion.rules import changed, refusal, rule_of

_NORMS = ("input_layernorm", "post_attention_layernorm")
_BASE = ("embed_tokens", "layers", "norm", "rotary_emb")


class FoldingError(Exception):
    """Says why a rotation can't be folded into a model. It never leaves the package."""


@dataclass
class Norm:
    """Holds an RMS norm and what it adds to its weight: 1 in Gemma, else 0."""

    name: str
    module: Any
    offset: float

    @property
    def gain(self) -> torch.Tensor:
        """Return what x / rms(x) is multiplied by, float32 [K], in memory of its own."""
        gain: torch.Tensor = self.module.weight.detach().to(torch.float32, copy=True) + self.offset
        return gain

    def neutralize(self) -> None:
        """Make the gain 1."""
        with torch.no_grad():
            self.module.weight.fill_(1 - self.offset)


@dataclass
class Values:
    """Describes where an attention's values are made.

    Attributes:
        module: linear layer whose last rows make the values.
        rows: number of these rows.
        head_size: values of one head.
    """

    module: Any
    rows: int
    head_size: int


@dataclass
class DecoderLayer:
    """Holds the modules of one layer: norms, linear layers that read the stream behind them, and those that add to it.

    ``values`` is None, and ``reason`` says why, if it is not known where values are made.
    """

    attention_norm: Norm
    mlp_norm: Norm
    qkv: list[Any]
    out: Any
    gate_up: list[Any]
    down: Any
    values: Values | None
    reason: str = ""


@dataclass
class Decoder:
    """Holds the modules of a model that read or write its residual stream."""

    embedding: Any
    layers: list[DecoderLayer]
    norm: Norm
    head: Any

    @property
    def is_tied(self) -> bool:
        """Return whether the head has the embedding's weight."""
        return self.head.weight is self.embedding.weight

    def readers(self) -> Iterator[tuple[Norm, list[Any]]]:
        """Yield each norm with the linear layers that read it."""
        for layer in self.layers:
            yield layer.attention_norm, layer.qkv
            yield layer.mlp_norm, layer.gate_up
        yield self.norm, [self.head]

    def writers(self) -> list[Any]:
        """Return the linear layers that add to the stream."""
        return [module for layer in self.layers for module in (layer.out, layer.down)]


def find_decoder(model: Any) -> Decoder:
    """Return the parts of a float model of transformers, which have these names in the families that are like Llama.

    Raises:
        FoldingError: a part is missing, of another kind or shared, or there is one too many.
    """
    base = getattr(model, "base_model", None)
    if not isinstance(base, torch.nn.Module) or not hasattr(model, "get_output_embeddings"):
        raise FoldingError(f"{type(model).__name__} is no language model of transformers")
    head = model.get_output_embeddings()
    if head is None or base is model:
        raise FoldingError(f"{type(model).__name__} has no language modeling head")
    for name in ("embed_tokens", "layers", "norm"):
        if not isinstance(base._modules.get(name), torch.nn.Module):
            raise FoldingError(f"{type(base).__name__} has no module {name!r}")
    _only(base, _BASE, type(base).__name__)
    found: Any = base
    _check_kind("embed_tokens", found.embed_tokens, "Embedding")
    _check_kind("the head", head, "Linear")
    layers = [_layer(f"layers.{number}", layer) for number, layer in enumerate(found.layers)]
    decoder = Decoder(found.embed_tokens, layers, _norm("norm", found.norm), head)
    _check_sizes(decoder)
    _check_owners(model, decoder)
    return decoder


def _layer(name: str, module: torch.nn.Module) -> DecoderLayer:
    attention, mlp = module._modules.get("self_attn"), module._modules.get("mlp")
    if attention is None or mlp is None:
        raise FoldingError(f"{name} has the modules {', '.join(module._modules)}, expected self_attn and mlp")
    _only(module, ("self_attn", "mlp", *_NORMS), name)
    qkv = _linear(f"{name}.self_attn", attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj")
    (out,) = _linear(f"{name}.self_attn", attention, ("o_proj",))
    gate_up = _linear(f"{name}.mlp", mlp, ("gate_proj", "up_proj"), "gate_up_proj")
    (down,) = _linear(f"{name}.mlp", mlp, ("down_proj",))
    _only(attention, ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm"), f"{name}.self_attn")
    _only(mlp, ("gate_proj", "up_proj", "gate_up_proj", "down_proj"), f"{name}.mlp")
    norms = [_norm(f"{name}.{each}", module._modules.get(each)) for each in _NORMS]
    made = DecoderLayer(norms[0], norms[1], qkv, out, gate_up, down, None)
    try:
        made.values = _values(f"{name}.self_attn", attention, qkv, out)
    except FoldingError as error:
        made.reason = str(error)
    return made


def _values(name: str, attention: Any, qkv: list[Any], out: Any) -> Values:
    size = getattr(attention, "head_dim", None)
    heads = getattr(getattr(attention, "config", None), "num_key_value_heads", None)
    if not isinstance(size, int) or size < 1 or not isinstance(heads, int):
        raise FoldingError(f"{name} tells no head_dim, or its config no num_key_value_heads")
    rows = heads * size
    whole = len(qkv) == 1
    if rows > qkv[-1].out_features or (not whole and rows != qkv[-1].out_features) or out.in_features % size:
        raise FoldingError(f"{name} has values of another size than {heads} heads of {size}")
    return Values(qkv[-1], rows, size)


def _linear(where: str, parent: torch.nn.Module, separate: Sequence[str], whole: str = "") -> list[Any]:
    names = [whole] if whole in parent._modules else separate
    for name in names:
        _check_kind(f"{where}.{name}", parent._modules.get(name), "Linear")
    return [parent._modules[name] for name in names]


def _check_kind(name: str, module: torch.nn.Module | None, kind: str) -> None:
    if module is None:
        raise FoldingError(f"{name} is missing")
    rule = rule_of(module, False)
    if rule is None or rule.kind != kind:
        raise FoldingError(f"{name} is a {type(module).__name__}, expected a {kind}")
    if reason := refusal(module, rule):
        raise FoldingError(f"{name}: {reason}")


def _norm(name: str, module: torch.nn.Module | None) -> Norm:
    """Return a norm that computes ``x / rms(x) * (weight + offset)``."""
    if module is None:
        raise FoldingError(f"{name} is missing")
    own = {key: each for key, each in module.named_parameters()}
    weight = own.get("weight")
    if weight is None or len(own) > 1 or weight.dim() != 1 or weight.is_meta:
        raise FoldingError(f"{name} is a {type(module).__name__}, expected an RMS norm with a weight alone")
    if reason := changed(module):
        raise FoldingError(f"{name}: {reason}")
    wide = copy.deepcopy(module).float().eval()
    x = torch.linspace(-7, 7, 3 * len(weight), device=weight.device).sin().view(3, -1) + 0.3
    with torch.no_grad():
        try:
            y = wide(x)
        except Exception as error:  # the module's own code, which may require other arguments
            raise FoldingError(f"{name} is a {type(module).__name__}, expected a norm of one argument") from error
        for offset in (0.0, 1.0):
            expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * (weight.float() + offset)
            if isinstance(y, torch.Tensor) and y.shape == x.shape and torch.allclose(y, expected, rtol=1e-3, atol=1e-4):
                return Norm(name, module, offset)
    raise FoldingError(f"{name} is a {type(module).__name__}, which computes something else than an RMS norm")


def _only(module: torch.nn.Module, names: Sequence[str], where: str) -> None:
    for name, child in module._modules.items():
        if name not in names and child is not None and any(True for _ in child.parameters()):
            raise FoldingError(f"{where} has a module {name!r} ({type(child).__name__}), expected {', '.join(names)}")
    own = [name for name, parameter in module._parameters.items() if parameter is not None]
    if own:
        raise FoldingError(f"{where} has parameters of its own: {', '.join(own)}")


def _check_sizes(decoder: Decoder) -> None:
    size = decoder.embedding.embedding_dim
    for norm, readers in decoder.readers():
        if len(norm.module.weight) != size or any(each.in_features != size for each in readers):
            raise FoldingError(f"{norm.name} or what reads it has another size than the embedding's {size}")
    if any(each.out_features != size for each in decoder.writers()):
        raise FoldingError(f"a layer that adds to the residual stream has another size than the embedding's {size}")


def _check_owners(model: torch.nn.Module, decoder: Decoder) -> None:
    """Raise FoldingError if a weight is shared, except that of embedding and head."""
    owners = StorageOwners(model)
    pairs = [(norm.module, readers) for norm, readers in decoder.readers()]
    modules = [each for norm, readers in pairs for each in (norm, *readers)] + decoder.writers() + [decoder.embedding]
    ends = decoder.embedding, decoder.head
    if len({id(module) for module in modules}) < len(modules):
        raise FoldingError("a module is in several places")
    for module in modules:
        allowed = 2 if decoder.is_tied and any(module is end for end in ends) else 1
        for parameter in module.parameters():
            if owners.is_shared(parameter, allowed):
                raise FoldingError(f"a weight of a {type(module).__name__} is shared")
            if parameter.is_inference():
                raise FoldingError(f"a weight of a {type(module).__name__} is an inference tensor")
