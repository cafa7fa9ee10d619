"""Replaces the forward pass of a whole decoder by one native call: ``fuse_`` and ``unfuse_``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel, slice_logits_to_keep
from transformers.utils import can_return_tuple

from qcore import _checks, _core
from qcore.torch.conversion.memory import trim
from qcore.transformers import kv_cache as kv
from qcore.transformers.fuse.inputs import (
    carry_to_inputs,
    carry_to_next,
    first_positions,
    position_range,
    read_arguments,
)
from qcore.transformers.fuse.observation import finish_logits, observe
from qcore.transformers.fuse.stack import DTYPE_NAMES, Stack
from qcore.transformers.fuse.structure import Place, StackParts, error, parts_of
from qcore.transformers.fuse.trial import check_layer, check_logits, record
from qcore.transformers.fuse.weights import join, split

_STACK = "_qcore_stack"
_HOST_DTYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}
"""Dtypes of the hidden states that are supported on each type of device."""
_KNOWN = {
    "input_ids",
    "attention_mask",
    "position_ids",
    "past_key_values",  # which 5.24 still takes beside the new name
    kv.CACHE,
    "inputs_embeds",
    "labels",
    "use_cache",
    "logits_to_keep",
    "num_items_in_batch",
}
_classes: dict[type, type] = {}


def _cache_of(arguments: dict[str, Any]) -> Any:
    """Return the cache that a call is given, by its name or by the one before 5.24."""
    cache = arguments.get(kv.CACHE)
    return arguments.get("past_key_values") if cache is None else cache


class LayerByLayerWarning(UserWarning):
    """Says that a fused model computed a call with its separate modules, and why."""


class FusedStack(Stack):
    """Holds the stack of a fused model and the places of its joint weights.

    Args:
        parts: the model.
        kv_dtype: "float32", "bfloat16", "float16", "int8", or None for the hidden states' dtype.
    """

    def __init__(self, parts: StackParts, kv_dtype: str | None) -> None:
        super().__init__(parts)
        self.kv_dtype = kv_dtype
        self.warned: set[str] = set()
        places = [place for layer in self.layers for place in (*layer.qkv, layer.out, *layer.gate_up, layer.down)]
        self.fused = [(parent, name, parent._modules[name]) for parent, name in places]

    def is_intact(self) -> bool:
        """Return whether all linear layers are those that were fused; an adapter replaces them by others."""
        return all(parent._modules[name] is module for parent, name, module in self.fused)

    def kv_layer_dtype(self, host: torch.dtype) -> str:
        """Return what the cache of a model with this host dtype holds."""
        return self.kv_dtype or DTYPE_NAMES[host]


class FusedMixin:
    """Replaces the forward pass of a model for causal language modeling by one native call."""

    config: Any
    training: bool
    _qcore_original: type

    def _qcore_forward(self, arguments: dict[str, Any]) -> CausalLMOutputWithPast | str:
        """Return the result, or why the native call cannot compute it."""
        stack: FusedStack = getattr(self, _STACK)
        reason = self._qcore_unsupported(stack, arguments)
        if reason:
            return reason
        model: Any = self
        hidden = arguments.get("inputs_embeds")
        if hidden is None:
            hidden = stack.parts.embedding(arguments["input_ids"])
        if hidden.dtype not in _HOST_DTYPES.get(hidden.device.type, ()):
            stack.release()
            return (
                f"hidden states are {hidden.dtype} on {hidden.device}, expected float32 or bfloat16 on the CPU or a "
                "CUDA device, or float16 on a CUDA device"
            )
        if torch.is_grad_enabled() and hidden.requires_grad and arguments.get("inputs_embeds") is not None:
            return "inputs_embeds requires gradients"
        batch, tokens, _ = hidden.shape
        cache = _cache_of(arguments)
        use_cache = arguments.get("use_cache")
        if use_cache is None:
            use_cache = self.config.use_cache
        past = 0 if cache is None else cache.get_seq_length()
        first = first_positions(arguments.get("attention_mask"), batch, past + tokens)
        if isinstance(first, str):
            return first
        positions = arguments.get("position_ids")
        if positions is None:
            end = past + tokens
            positions = torch.arange(past, end, device=hidden.device)[None]
        else:
            lowest, end = position_range(positions)
            if lowest < 0:
                return f"position_ids has the element {lowest}, expected numbers from 0"
        kv_dtype = stack.kv_layer_dtype(hidden.dtype)
        if cache is None and use_cache:
            cache = DynamicCache()
        layers: Sequence[kv.KvLayer]
        if cache is None:
            layers = [kv.KvLayer(kv_dtype, hidden.dtype) for _ in stack.layers]
        else:
            layers = kv.adopt(cache, len(stack.layers), kv_dtype, hidden.dtype)
        if stack.parts.input_multiplier != 1:
            hidden = hidden * stack.parts.input_multiplier
        keep = arguments.get("logits_to_keep")
        with torch.no_grad():
            if keep is None or isinstance(keep, int):
                rows = min(keep or tokens, tokens)
                logits = stack.run(hidden, positions, layers, first, rows, logits=True, end=end)
            else:
                normed = stack.run(hidden, positions, layers, first, tokens, logits=False, end=end)
                logits = finish_logits(stack.parts, stack.parts.head(slice_logits_to_keep(normed, keep)))
        loss = None
        if (labels := arguments.get("labels")) is not None:
            more = {key: arguments[key] for key in ("num_items_in_batch",) if arguments.get(key) is not None}
            vocabulary = self.config.get_text_config().vocab_size
            loss = model.loss_function(logits=logits, labels=labels, vocab_size=vocabulary, **more)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{kv.CACHE: cache})

    def _qcore_unsupported(self, stack: FusedStack, arguments: dict[str, Any]) -> str:
        """Return what only the unfused computation supports in a call; an empty string if there is nothing."""
        if self.training:
            return "the model is in training mode"
        for name in ("output_attentions", "output_hidden_states"):
            wanted = arguments.get(name)
            if getattr(self.config, name, False) if wanted is None else wanted:
                return f"{name} is set"
        for name, value in arguments.items():
            if value is not None and name not in _KNOWN and name not in ("output_attentions", "output_hidden_states"):
                return f"the call has an argument {name!r}"
        ids, embeddings = arguments.get("input_ids"), arguments.get("inputs_embeds")
        given: Any = embeddings if ids is None else ids
        if (ids is None) == (embeddings is None) or given.dim() != (2 if embeddings is None else 3):
            return "the call has not exactly one of input_ids [B, T] and inputs_embeds [B, T, H]"
        if given.shape[0] == 0 or given.shape[1] == 0:
            return "the call has no tokens"
        positions = arguments.get("position_ids")
        if positions is not None and (
            positions.dim() != 2
            or positions.shape[1] != given.shape[1]
            or positions.shape[0] not in (1, given.shape[0])
        ):
            return f"position_ids is {list(positions.shape)}, expected [B, T] or [1, T]"
        if len({name for name in (kv.CACHE, "past_key_values") if arguments.get(name) is not None}) > 1:
            return f"the call has both {kv.CACHE} and past_key_values"
        cache = _cache_of(arguments)
        if cache is not None and (reason := kv.unsupported_reason(cache, len(stack.layers))):
            return reason
        if cache is not None and cache.get_seq_length():
            layer = cache.layers[0]
            held = layer.batch_size if type(layer) is kv.KvLayer else layer.keys.shape[0]
            if held != given.shape[0]:
                return f"{kv.CACHE} has {held} sequences, the call {given.shape[0]}"
        return "" if stack.is_intact() else "a layer was exchanged after fuse_"

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of ``generate``'s next step, and carry over what is known of their values."""
        original: Any = type(self)._qcore_original._update_model_kwargs_for_generation  # type: ignore[attr-defined]
        before = dict(model_kwargs)
        after: dict[str, Any] = original(self, outputs, model_kwargs, *args, **kwargs)
        if original is GenerationMixin._update_model_kwargs_for_generation:
            carry_to_next(before, after)
        return after

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Save the unfused model, with the arguments of transformers' method of this name."""
        model: Any = self
        with _unfused(model):
            return model.save_pretrained(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the class that was fused, since the fused one is made at run time."""
        return _remake, (type(self)._qcore_original,), self.__dict__


def _remake(original: type) -> Any:
    kind: Any = _fused_class(original)
    return kind.__new__(kind)


def _fused_class(original: type) -> type:
    if original not in _classes:
        _classes[original] = type(
            original.__name__,
            (_mixin_of(original), FusedMixin, original),
            {
                "__module__": original.__module__,
                "__qualname__": original.__qualname__,
                "__doc__": original.__doc__,
                "_qcore_original": original,
            },
        )
    return _classes[original]


def _mixin_of(original: Any) -> type:
    """Return a class with the forward pass of a fused model and the signature of the original one."""
    signature = inspect.signature(original.forward)
    names = [name for name in signature.parameters if name != "self"]

    @can_return_tuple
    def run(self: Any, **arguments: Any) -> Any:
        result = self._qcore_forward(arguments)
        if not isinstance(result, str):
            return result
        warned = getattr(self, _STACK).warned
        if result not in warned:
            warned.add(result)
            warnings.warn(
                f"a fused {original.__name__} computes this call layer by layer: {result}",
                LayerByLayerWarning,
                stacklevel=4,
            )
        return original.forward(self, **arguments)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.update(zip(names, args, strict=False))
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return original.forward(self, **kwargs)
        return run(self, **kwargs)

    forward.__doc__ = original.forward.__doc__
    forward.__signature__ = signature  # type: ignore[attr-defined]

    def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        read_arguments(kwargs)
        inputs = original.prepare_inputs_for_generation(self, *args, **kwargs)
        carry_to_inputs(kwargs, inputs)
        return inputs

    methods: dict[str, Any] = {"forward": forward}
    if hasattr(original, "prepare_inputs_for_generation"):
        # generate() reads the names of its parameters.
        prepare = inspect.signature(original.prepare_inputs_for_generation)
        prepare_inputs_for_generation.__signature__ = prepare  # type: ignore[attr-defined]
        methods["prepare_inputs_for_generation"] = prepare_inputs_for_generation
    return type(f"Fused{original.__name__}", (), methods)


def fuse_(model: Any, *, kv_cache: str | None = None) -> None:
    """Make a quantized transformers model compute each forward pass by one native call.

    ``generate`` and ``model(...)`` stay as they are. Queries, keys and values become one product, gate and up another;
    norms, rotary embedding, attention and gate run on the threads of this library over a preallocated cache. The model
    is read by the names and types of its modules and by what its own code hands to the attention function, whatever its
    class: Llama, Qwen2, Qwen3, Mistral, Phi-3, Gemma 1 to 3, Granite, SmolLM and others of that structure. Then every
    fused layer is compared with the unfused one on some tokens. If anything fails, the model is as it was.

    On CUDA, a step of one token for each sequence is recorded as a CUDA graph when it comes for the second time with
    the same batch size, memory of the cache and stream, and replayed from then on. A cache that grows, or another
    one, is recorded again.

    Calls that the native decoder does not compute run layer by layer, over the same weights, with a
    :class:`LayerByLayerWarning` that says why: ``output_attentions``, ``output_hidden_states``, training mode, static
    caches, masks with anything but padding on the left, float16 on the CPU. Results carry no gradients.

    Args:
        model: a model for causal language modeling of transformers whose linear layers are
            :class:`qcore.torch.Linear`, in evaluation mode: on the CPU in float32 or bfloat16, or wholly on one CUDA
            device in float32, bfloat16 or float16. The embedding and the head may be in floating point.
        kv_cache: "float32", "bfloat16", "float16" or "int8", what caches hold. By default the dtype of the hidden
            states. "int8" has one scale per sequence, head and position.

    Raises:
        QcoreValueError: a layer has other modules than expected or computes something else, naming it; or the model is
            on several devices, or on one that is neither the CPU nor a CUDA device.
        QcoreTypeError: model is not a model of transformers.
    """
    if not isinstance(model, PreTrainedModel):
        raise _core.QcoreTypeError(f"fuse_: model is a {type(model).__name__}, expected a transformers.PreTrainedModel")
    if kv_cache is not None:
        _checks.choice(kv_cache, kv.KV_DTYPES, "fuse_: kv_cache")
    if isinstance(model, FusedMixin):
        raise error("model is fused already, expected an unfused model: unfuse_(model) makes one")
    if model.training:
        raise error("model is in training mode, expected evaluation mode: call model.eval()")
    parts = parts_of(model)
    devices = {each.device for each in (*model.parameters(), *model.buffers())}
    if len(devices) != 1 or next(iter(devices)).type not in _HOST_DTYPES:
        given = " and ".join(sorted(map(str, devices)))
        raise error(f"model is on {given}, expected the CPU or one CUDA device")
    parts.device = devices.pop()
    observe(model, parts)
    allowed = _HOST_DTYPES[parts.device.type]
    if parts.dtype not in allowed:
        expected = " or ".join(map(str, allowed))
        raise error(f"hidden states are {parts.dtype} on {parts.device}, expected {expected}")
    trial = record(model, parts)
    done: list[list[Place]] = []
    try:
        for number, layer in enumerate(parts.layers):
            for places in (layer.qkv, layer.gate_up):
                join(places)
                done.append(places)
            trim()  # the heap of the separate weights would otherwise stay with the process, fragmented
            check_layer(trial, parts, number)
        check_logits(trial, parts)
    except BaseException:
        for places in done:
            split(places)
        raise
    del trial
    trim()
    _install(model, FusedStack(parts, kv_cache))


def unfuse_(model: Any) -> None:
    """Undo :func:`fuse_`: every linear layer has a weight of its own again, with the same bits.

    Args:
        model: a fused model.

    Raises:
        QcoreValueError: it is not fused, or a layer was exchanged since.
    """
    if not isinstance(model, FusedMixin):
        raise _core.QcoreValueError(
            f"unfuse_: model is a {type(model).__name__} that is not fused, expected a fused one"
        )
    stack: FusedStack = getattr(model, _STACK)
    if not stack.is_intact():
        raise _core.QcoreValueError("unfuse_: a layer was exchanged after fuse_, expected the fused layers")
    _uninstall(model)
    for places in _joinable(stack.parts):
        split(places)


def _joinable(parts: StackParts) -> Iterator[list[Place]]:
    for layer in parts.layers:
        yield from (layer.qkv, layer.gate_up)


def _install(model: Any, stack: FusedStack) -> None:
    setattr(model, _STACK, stack)
    model.__class__ = _fused_class(type(model))


def _uninstall(model: Any) -> None:
    delattr(model, _STACK)
    model.__class__ = type(model)._qcore_original


@contextmanager
def _unfused(model: Any) -> Iterator[None]:
    """Unfuse a model inside the context and fuse it afterwards, without comparing its layers again."""
    stack: FusedStack = getattr(model, _STACK)
    unfuse_(model)
    try:
        yield
    finally:
        for places in _joinable(stack.parts):
            join(places)
        _install(model, FusedStack(stack.parts, stack.kv_dtype))
