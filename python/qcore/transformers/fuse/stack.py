"""Makes the native decoder of a model's parts with its rotary tables, and calls it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from qcore import decoder as native
from qcore.torch import Linear
from qcore.transformers.fuse.graphs import StepCall, StepGraphs
from qcore.transformers.fuse.inputs import position_range
from qcore.transformers.fuse.observation import finish_logits, rotary_rows
from qcore.transformers.fuse.structure import LayerParts, Place, StackParts
from qcore.transformers.fuse.weights import RowsLinear
from qcore.transformers.kv_cache import KvLayer

_FIRST_POSITIONS = 1024
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class _Prepared(NamedTuple):
    """Holds the caches of a call as the native decoder takes them.

    Attributes:
        arrays: those of each layer.
        native: made of them.
        memory: a text that tells addresses, shapes, strides and dtypes of the arrays.
        owner: refers to the first layer's cache, with which this is dropped.
    """

    arrays: list[Any]
    native: Any
    memory: str
    owner: Any


_NO_CACHES = _Prepared([], None, "", None)


class Stack:
    """Runs layers of a model by one native call.

    The native decoder is made at the first call, and again when the dtype or the device of the hidden states changes or
    positions outgrow the rotary tables; it shares the modules' quantized weights. On CUDA, steps of one token for each
    sequence are replayed from graphs: all that changes from step to step is in ``hidden``, ``positions``, ``past`` and
    ``first``, arrays of fixed shape, as long as the caches have room.

    Args:
        parts: the model.
        layers: those of its layers to run; all by default.
        ends: whether the final norm and the head follow.
    """

    def __init__(self, parts: StackParts, layers: Sequence[LayerParts] | None = None, ends: bool = True) -> None:
        self.parts = parts
        self.layers = list(parts.layers if layers is None else layers)
        self.ends = ends
        self.graphs = StepGraphs()
        # The native decoder with the dtype, device, positions and regime that it was made for: one tuple, since several
        # threads may call.
        self._made: tuple[Any, Any] = None, None
        self._caches = _NO_CACHES

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "graphs"}
        return state | {"_made": (None, None), "_caches": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.graphs = StepGraphs()
        self._caches = _NO_CACHES

    def release(self) -> None:
        """Drop the native decoder and what it shares with the modules; the next call makes another."""
        self._made, self._caches = (None, None), _NO_CACHES
        self.graphs.clear()

    @property
    def has_native_head(self) -> bool:
        """Return whether the head is quantized, so that the native call computes logits."""
        head = self.parts.head
        return self.ends and type(head) is Linear and head.activation is None

    def run(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[KvLayer],
        first: torch.Tensor | None,
        rows: int,
        *,
        logits: bool,
        end: int | None = None,
    ) -> torch.Tensor:
        """Run the layers over T tokens of B sequences and append their keys and values to the caches.

        Args:
            hidden: float32, bfloat16 or float16 [B, T, H], what the first layer gets.
            positions: int [B, T] or [1, T], for the rotary tables.
            caches: one for each layer, of the same length.
            first: int32 [B] on the CPU, the first position that holds a token, or None for 0.
            rows: results are wanted of the last so many tokens of each sequence.
            logits: whether the head's results are wanted, not the final norm's (without ``ends``: the last layer's).
            end: the exclusive end of the positions; without it they are read, which waits for a device.

        Returns:
            [B, rows, V] or [B, rows, H] in hidden's dtype.
        """
        batch, tokens, _ = hidden.shape
        decoder = self._prepare(hidden.dtype, hidden.device, position_range(positions)[1] if end is None else end)
        past = caches[0].length
        if not self._have_room(caches, batch, past + tokens):
            for cache in caches:
                cache.reserve(batch, self.parts.kv_heads, self.parts.head_size, past + tokens, hidden.device)
        prepared = self._prepared(caches)
        in_head = logits and self.has_native_head
        out: torch.Tensor | None = None
        if tokens == 1:
            step = StepCall(decoder, prepared.native, prepared.memory, hidden.detach(), positions, past, first, in_head)
            out = self.graphs.run(step)
        if out is None:
            on_device = hidden.device.type != "cpu"
            out = decoder.forward(
                hidden.detach(),
                positions.to(device=hidden.device, dtype=torch.int32).expand(batch, tokens),
                torch.full((batch,), past, dtype=torch.int32, device=hidden.device),
                prepared.native,
                first=None if first is None else first.to(hidden.device),
                last=rows,
                result="logits" if in_head else "hidden",
                max_length=past + tokens if on_device else 0,
            )
        for cache in caches:
            cache.length = past + tokens
        return finish_logits(self.parts, self.parts.head(out)) if logits and not in_head else out

    def _have_room(self, caches: Sequence[KvLayer], batch: int, length: int) -> bool:
        """Return whether caches that a call has prepared before have room: a step then looks at one of them only."""
        if not self._are_prepared(caches):
            return False
        keys = caches[0].arrays[0]
        return bool(keys.shape[0] == batch and keys.shape[2] >= length)

    def _are_prepared(self, caches: Sequence[KvLayer]) -> bool:
        held = self._caches.arrays
        return len(held) == len(caches) and all(old is new.arrays for old, new in zip(held, caches, strict=True))

    def _prepared(self, caches: Sequence[KvLayer]) -> _Prepared:
        """Return the caches as the native call takes them, made anew when one of them has other arrays.

        They are held until another cache comes or the caches themselves are dropped, so that their memory is free for
        the cache of the next generation.
        """
        prepared = self._caches
        if self._are_prepared(caches):
            return prepared
        arrays = [cache.arrays for cache in caches]
        memory = repr(
            [(each.data_ptr(), *each.shape, *each.stride(), each.dtype) for layer in arrays for each in layer]
        )
        this = weakref.ref(self)

        def forget(owner: Any) -> None:
            stack = this()
            if stack is not None and stack._caches.owner is owner:
                stack._caches = _NO_CACHES

        prepared = _Prepared(
            arrays,
            native.Caches([native.KeyValueCache(*each) for each in arrays]),
            memory,
            weakref.ref(caches[0], forget),
        )
        self._caches = prepared
        return prepared

    def _prepare(self, dtype: torch.dtype, device: torch.device, length: int) -> Any:
        """Return the native decoder, a new one unless it is for this dtype and device with ``length`` positions."""
        self.parts.dtype, self.parts.device = dtype, device
        size, regime = self._positions(length)
        decoder, made_for = self._made
        if decoder is not None:
            made_dtype, made_device, made_size, made_regime = made_for
            if (made_dtype, made_device, made_regime) == (dtype, device, regime) and made_size >= length:
                return decoder
        decoder = self._make(size)
        self._made = decoder, (dtype, device, size, regime)
        self.graphs.clear()
        return decoder

    def _positions(self, length: int) -> tuple[int, Any]:
        """Return the rows for tables that a call up to ``length`` needs, and what their angles depend on else.

        Angles of the types "dynamic" and "longrope" depend on the length of the longest sequence.
        """
        size = _FIRST_POSITIONS
        while size < length:
            size *= 2
        kinds = getattr(self.parts.rotary, "rope_type", "default")
        kinds = set(kinds.values()) if isinstance(kinds, dict) else {kinds}
        if not any(kind == "longrope" or "dynamic" in kind for kind in kinds):
            return size, None
        limit = self._scaled_beyond()
        if length <= limit:
            return min(size, limit), "short"
        return (length, length) if any("dynamic" in kind for kind in kinds) else (max(size, limit + 1), "long")

    def _scaled_beyond(self) -> int:
        """Return the longest sequence with the original angles."""
        parameters = self.parts.rotary.config.rope_parameters
        nested = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
        given = [each["original_max_position_embeddings"] for each in nested if "longrope" in each.values()]
        return int(min(given)) if given else int(self.parts.rotary.original_max_seq_len)

    def _make(self, positions: int) -> Any:
        parts = self.parts
        rows = torch.arange(positions, device=parts.device)
        head = parts.head if self.has_native_head else None
        return native.Decoder(
            [self._layer(each) for each in self.layers],
            hidden_size=parts.layers[0].linears()[0].in_features,
            heads=parts.heads,
            kv_heads=parts.kv_heads,
            head_size=parts.head_size,
            intermediate_size=parts.layers[0].linears()[-1].in_features,
            dtype=DTYPE_NAMES[parts.dtype],
            compute=parts.compute,
            head_compute=parts.compute if head is None else head.compute,
            eps=parts.eps,
            norm_offset=parts.norm_offset,
            round_normalized=parts.round_normalized,
            activation=parts.activation,
            attention_scale=parts.attention_scale,
            attention_soft_cap=parts.attention_soft_cap,
            residual_multiplier=parts.residual_multiplier,
            logit_multiplier=parts.logit_multiplier,
            logit_soft_cap=parts.logit_soft_cap,
            rotary_layout="interleaved" if parts.interleaved else "halves",
            rotary=[tuple(map(_on_host, rotary_rows(parts, rows, name))) for name in parts.tables],
            final_norm=_on_host(parts.final_norm.weight) if self.ends else None,
            head=None if head is None else head.weight,
            head_bias=None if head is None or head.bias is None else _on_host(head.bias),
        )

    def _layer(self, layer: LayerParts) -> Any:
        out, down = (parent._modules[name] for parent, name in (layer.out, layer.down))
        qkv, gate_up = _parts(layer.qkv), _parts(layer.gate_up)

        def weight(norm: torch.nn.Module | None) -> torch.Tensor | None:
            return None if norm is None else _on_host(norm.weight)

        def bias(*linears: Any) -> torch.Tensor | None:
            if all(each.bias is None for each in linears):
                return None
            return torch.cat(
                [torch.zeros(each.out_features) if each.bias is None else _on_host(each.bias) for each in linears]
            )

        return native.Layer(
            name=layer.name,
            input_norm=weight(layer.input_norm),
            qkv=[each.weight for each in qkv],
            qkv_bias=bias(*qkv),
            q_norm=weight(layer.q_norm),
            k_norm=weight(layer.k_norm),
            out=out.weight,
            out_bias=bias(out),
            post_attention_norm=weight(layer.post_attention_norm),
            mlp_norm=weight(layer.mlp_norm),
            gate_up=[each.weight for each in gate_up],
            gate_up_bias=bias(*gate_up),
            down=down.weight,
            down_bias=bias(down),
            post_mlp_norm=weight(layer.post_mlp_norm),
            window=layer.window,
            rotary=layer.rotary,
        )


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32 on the CPU.

    The native decoder would copy it from a device without waiting for the stream that computes it.
    """
    return tensor.detach().float().cpu()


def _parts(places: Sequence[Place]) -> list[Linear]:
    """Return the linear layers of several places: the one that holds the rows of all where they were joined."""
    modules: list[Any] = [parent._modules[name] for parent, name in places]
    return [modules[0].joint.linear] if isinstance(modules[0], RowsLinear) else modules
