"""Observes what a model does between its modules while it runs on one token.

Classes of transformers differ in attributes that say the same: where a sliding window is, which scale the scores have,
how keys are rotated. So the numbers are taken from what the model's own code hands to the attention function, to its
layers and to its caller.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qcore.transformers.fuse.structure import StackParts, error
from qcore.transformers.kv_cache import CACHE

_KEY = "qcore_observation"
_SHORT = 7
_lock = threading.Lock()
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.nn.functional.relu,
}


class _PastLayer(CacheLayerMixin):
    """Claims to hold ``length`` tokens and holds none, which is enough where the attention is not computed."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def observe(model: Any, parts: StackParts) -> None:
    """Complete the parts of a model by running it on one token whose cache claims to hold many earlier ones.

    Raises:
        QcoreValueError: something is computed that the fused stack does not compute, naming it.
    """
    past = max([_SHORT, *_windows(model, parts)]) + 3
    seen: dict[int, dict[str, Any]] = {id(layer.attention): {} for layer in parts.layers}
    tensors: dict[str, torch.Tensor] = {}

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        seen[id(module)] |= {"query": query, "key": key, "value": value, "mask": mask, "options": options}
        return query.new_zeros(*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1]), None

    def mask_of(*args: Any, **kwargs: Any) -> Any:
        return sdpa_mask(*args, **kwargs | {"allow_is_causal_skip": False})

    handles = [
        parts.embedding.register_forward_hook(lambda _, __, output: tensors.__setitem__("embedded", output)),
        parts.head.register_forward_hook(lambda _, __, output: _grid(output)),
        parts.layers[0].module.register_forward_pre_hook(
            lambda _, args, kwargs: tensors.__setitem__("hidden", args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        ),
    ]
    for layer in parts.layers:
        note = seen[id(layer.attention)]
        handles.append(
            layer.attention.register_forward_pre_hook(
                lambda _, __, kwargs, note=note: note.__setitem__("angles", kwargs.get("position_embeddings")),
                with_kwargs=True,
            )
        )
        before_rotation = layer.k_norm or layer.linears()[1 if len(layer.qkv) == 3 else 0]
        handles.append(
            before_rotation.register_forward_hook(
                lambda _, __, output, note=note: note.__setitem__("unrotated", output)
            )
        )
    cache = Cache(layers=[_PastLayer(past) for _ in parts.layers])
    try:
        with _attention_function(model, parts, attention, mask_of), torch.no_grad():
            logits = model(torch.tensor([[1]], device=parts.device), use_cache=True, **{CACHE: cache}).logits
    finally:
        for handle in handles:
            handle.remove()
    parts.dtype = tensors["hidden"].dtype
    _read_shapes(parts, seen)
    _read_attention(parts, seen, past)
    _read_rotation(parts, seen, past)
    _read_norms(parts)
    _read_activation(parts)
    _read_ends(model, parts, tensors, logits)


def _windows(model: Any, parts: StackParts) -> Iterator[int]:
    for holder in (model.config, *(layer.attention for layer in parts.layers)):
        for name in ("sliding_window", "attention_chunk_size"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                yield value


@contextmanager
def _attention_function(model: Any, parts: StackParts, attention: Any, mask_of: Any) -> Iterator[None]:
    """Replace the attention and mask functions in the model's configurations inside the context."""
    configs = {id(each.config): each.config for each in (model, parts.base, *(x.attention for x in parts.layers))}
    before = {key: config._attn_implementation_internal for key, config in configs.items()}
    with _lock:
        ALL_ATTENTION_FUNCTIONS.register(_KEY, attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register(_KEY, mask_of)
        try:
            for config in configs.values():
                config._attn_implementation_internal = _KEY
            yield
        finally:
            for key, config in configs.items():
                config._attn_implementation_internal = before[key]
            type(ALL_ATTENTION_FUNCTIONS)._global_mapping.pop(_KEY)
            type(ALL_MASK_ATTENTION_FUNCTIONS)._global_mapping.pop(_KEY)


def _grid(output: torch.Tensor) -> torch.Tensor:
    return (
        torch.linspace(-96, 96, output.shape[-1], dtype=output.dtype, device=output.device).expand(output.shape).clone()
    )


def _read_shapes(parts: StackParts, seen: dict[int, dict[str, Any]]) -> None:
    shapes = set()
    for layer in parts.layers:
        note = seen[id(layer.attention)]
        if "query" not in note:
            raise error(
                f"{layer.name}.self_attn does not call transformers' attention function, expected one that does"
            )
        query, key, value = note["query"], note["key"], note["value"]
        if value.shape != key.shape or query.shape[-1] != key.shape[-1]:
            raise error(
                f"{layer.name}.self_attn has queries, keys and values {list(query.shape)}, {list(key.shape)} and "
                f"{list(value.shape)}, expected heads of one size"
            )
        shapes.add((query.shape[1], key.shape[1], key.shape[-1]))
        for name in ("q_norm", "k_norm"):
            norm = getattr(layer, name)
            if norm is not None and tuple(norm.weight.shape) != (key.shape[-1],):
                raise error(
                    f"{layer.name}.self_attn.{name} has a weight {list(norm.weight.shape)}, expected "
                    f"[{key.shape[-1]}]: of each head by itself"
                )
    if len(shapes) > 1:
        raise error(f"the layers have (Hq, Hkv, D) = {' and '.join(map(str, sorted(shapes)))}, expected one shape")
    parts.heads, parts.kv_heads, parts.head_size = shapes.pop()


def _read_attention(parts: StackParts, seen: dict[int, dict[str, Any]], past: int) -> None:
    scales, caps, multipliers = set(), set(), set()
    for layer in parts.layers:
        note = seen[id(layer.attention)]
        options = note["options"]
        for name, value in options.items():
            if isinstance(value, torch.Tensor) and name != "position_ids":
                raise error(f"{layer.name}.self_attn passes a tensor {name!r} to the attention, expected none")
        scale = options.get("scaling")
        scales.add(parts.head_size**-0.5 if scale is None else float(scale))
        caps.add(float(options.get("softcap") or 0.0))
        multipliers.add(float(getattr(layer.module, "residual_multiplier", 1.0)))
        layer.window = _window_of(layer.name, note["mask"], past)
    for what, values in (("scales", scales), ("soft caps", caps), ("residual multipliers", multipliers)):
        if len(values) > 1:
            raise error(f"the layers have {what} {' and '.join(map(str, sorted(values)))}, expected one for all")
    parts.attention_scale, parts.attention_soft_cap = scales.pop(), caps.pop()
    parts.residual_multiplier = multipliers.pop()


def _window_of(name: str, mask: Any, past: int) -> int:
    """Return how many keys a token sees, 0 for all, by the mask of a token behind ``past`` ones."""
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (1, 1, 1, past + 1):
        given = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise error(f"{name}.self_attn has the mask {given}, expected [1, 1, 1, {past + 1}]")
    row = mask.flatten().bool()
    visible = int(row.sum())
    if not visible or not bool(row[-visible:].all()):
        raise error(f"{name}.self_attn has a mask with holes, expected the last keys to be visible")
    return 0 if visible == past + 1 else visible


def rotary_rows(parts: StackParts, positions: torch.Tensor, layer_type: str | None) -> tuple[torch.Tensor, ...]:
    """Return cos and sin [positions, R] in float32, as the model's rotary module gives them to its layers."""
    x = torch.empty(1, 1, 1, dtype=parts.dtype, device=positions.device)
    arguments = () if layer_type is None else (layer_type,)
    with torch.no_grad():
        rows = [each.float()[0] for each in parts.rotary(x, positions[None], *arguments)]
    if parts.repeat_angles:
        rows = [each[:, : each.shape[-1] // 2].repeat_interleave(2, dim=-1) for each in rows]
    return tuple(rows)


def _read_rotation(parts: StackParts, seen: dict[int, dict[str, Any]], past: int) -> None:
    known = _tables(parts, past)
    kinds, used = set(), []
    for layer in parts.layers:
        note = seen[id(layer.attention)]
        key = note["key"].float().reshape(parts.kv_heads, -1)
        unrotated = note["unrotated"].float().flatten()
        if layer.k_norm is None and len(layer.qkv) == 1:
            begin = parts.heads * parts.head_size
            unrotated = unrotated[begin : begin + key.numel()]
        unrotated = unrotated.reshape(key.shape)
        limit = (1e-5 if parts.dtype == torch.float32 else 3e-2) * float(key.norm())
        if float((key - unrotated).norm()) <= 1e-6 * float(key.norm()):
            continue
        if note["angles"] is None:
            raise error(f"{layer.name}.self_attn gets no position_embeddings, expected cos and sin")
        cos, sin = (each.float().flatten() for each in note["angles"])
        errors = {kind: float((_rotated(unrotated, cos, sin, *kind) - key).norm()) for kind in _ROTATIONS}
        best = min(errors, key=lambda kind: errors[kind])
        if not errors[best] <= limit:
            raise error(f"{layer.name}.self_attn rotates keys in another way than rotate_half and its interleaved form")
        kinds.add(best)
        table = next((i for i, rows in enumerate(known.values()) if torch.equal(rows[0], cos)), None)
        if table is None:
            raise error(f"{layer.name}.self_attn gets angles that rotary_emb does not give, expected its cos and sin")
        name = list(known)[table]
        if name not in used:
            used.append(name)
        layer.rotary = used.index(name)
    if len(kinds) > 1:
        raise error("the layers rotate keys in different ways, expected one")
    parts.interleaved, parts.repeat_angles = kinds.pop() if kinds else (False, False)
    parts.tables = used


_ROTATIONS = ((False, False), (True, False), (True, True))
"""Whether pairs are interleaved, and whether the angles of the first half are then repeated."""


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, repeat: bool) -> torch.Tensor:
    size = cos.shape[-1]
    if repeat:
        cos, sin = (each[: size // 2].repeat_interleave(2) for each in (cos, sin))
    part = x[:, :size]
    if interleaved:
        turned = torch.stack((-part[:, 1::2], part[:, 0::2]), dim=-1).flatten(-2)
    else:
        turned = torch.cat((-part[:, size // 2 :], part[:, : size // 2]), dim=-1)
    return torch.cat((part * cos + turned * sin, x[:, size:]), dim=-1)


def _tables(parts: StackParts, past: int) -> dict[str | None, tuple[torch.Tensor, ...]]:
    """Return cos and sin [R] of the position ``past`` for each argument of the rotary module."""
    position = torch.tensor([past], device=parts.device)
    types = getattr(parts.rotary, "layer_types", None)
    names: list[str | None] = [None] if types is None else list(types)
    return {name: tuple(rows[0] for rows in rotary_rows(parts, position, name)) for name in names}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, round_first: bool) -> torch.Tensor:
    """Return x / rms(x) * (weight + offset) in x's dtype; ``round_first`` rounds x / rms(x) to it too."""
    wide = x.float()
    normalized = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if round_first:
        normalized = normalized.to(x.dtype).float()
    return (normalized * (weight.float() + offset)).to(x.dtype)


def _read_norms(parts: StackParts) -> None:
    found = set()
    norms = [each for layer in parts.layers for each in layer.norms()]
    for name, norm in (*norms, ("model.norm", parts.final_norm)):
        found.add(_norm_kind(name, norm))
    if len(found) > 1:
        raise error(f"the norms have (eps, offset, order) {' and '.join(map(str, sorted(found)))}, expected one kind")
    parts.eps, parts.norm_offset, parts.round_normalized = found.pop()


def _norm_kind(name: str, norm: Any) -> tuple[float, float, bool]:
    """Return eps, what is added to the weight, and whether x / rms(x) is rounded before the weight multiplies it."""
    eps = next((getattr(norm, each) for each in ("variance_epsilon", "eps") if hasattr(norm, each)), None)
    weight = getattr(norm, "weight", None)
    if not isinstance(eps, float) or not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        raise error(f"{name} is a {type(norm).__name__} without eps or weight, expected an RMS norm with both")
    generator = torch.Generator().manual_seed(0)
    size = weight.shape[0]
    # The second half is so small that eps changes the result.
    x = torch.randn(8, size, generator=generator) + 0.3
    x[4:] *= math.sqrt(eps) * 2
    with torch.no_grad():
        wide, narrow = copy.deepcopy(norm).float(), copy.deepcopy(norm).bfloat16()
        x, y = x.to(weight.device), wide(x.to(weight.device))
        for offset in (0.0, 1.0):
            if torch.allclose(rms_norm(x, wide.weight, eps, offset, False), y, rtol=1e-4, atol=1e-6):
                break
        else:
            raise error(f"{name} is a {type(norm).__name__} that computes something else than an RMS norm")
        short = x.bfloat16()
        expected = narrow(short).float()
        orders = [rms_norm(short, narrow.weight, eps, offset, order).float() for order in (False, True)]
        differ = [float((each - expected).abs().sum()) for each in orders]
    return eps, offset, differ[1] < differ[0]


def _read_activation(parts: StackParts) -> None:
    x = torch.linspace(-8, 8, 321, device=parts.device)
    found = set()
    for layer in parts.layers:
        with torch.no_grad():
            y = layer.activation(x)
        name = next((key for key, run in _ACTIVATIONS.items() if torch.allclose(run(x), y, atol=1e-6)), None)
        if name is None:
            kind = type(layer.activation).__name__
            raise error(f"{layer.name}.mlp has the activation {kind}, expected {', '.join(_ACTIVATIONS)}")
        found.add(name)
    if len(found) > 1:
        raise error(f"the layers have the activations {' and '.join(sorted(found))}, expected one")
    parts.activation = found.pop()


def _read_ends(model: Any, parts: StackParts, tensors: dict[str, torch.Tensor], logits: torch.Tensor) -> None:
    """Read what is done to embeddings before the first layer, and to the head's results."""
    config = model.config
    parts.input_multiplier = float(getattr(config, "embedding_multiplier", 1.0))
    embedded, hidden = tensors["embedded"], tensors["hidden"]
    if not torch.equal(embedded if parts.input_multiplier == 1 else embedded * parts.input_multiplier, hidden):
        raise error("the first layer gets something else than the embedding, expected it times embedding_multiplier")
    parts.logit_multiplier = (
        1 / float(getattr(config, "logits_scaling", 1.0)) * float(getattr(config, "logit_scale", 1))
    )
    parts.logit_soft_cap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
    grid = _grid(logits)
    expected = finish_logits(parts, grid)
    if not torch.allclose(expected.float(), logits.float(), rtol=1e-5 if logits.dtype == torch.float32 else 2e-2):
        raise error(
            f"logits are the head's result changed in another way than multiplied by {parts.logit_multiplier:g} and "
            f"capped at {parts.logit_soft_cap:g} (0: not at all)"
        )


def finish_logits(parts: StackParts, logits: torch.Tensor) -> torch.Tensor:
    """Return logits of a head multiplied and soft-capped."""
    if parts.logit_multiplier != 1:
        logits = logits * parts.logit_multiplier
    if parts.logit_soft_cap:
        logits = torch.tanh(logits / parts.logit_soft_cap) * parts.logit_soft_cap
    return logits
