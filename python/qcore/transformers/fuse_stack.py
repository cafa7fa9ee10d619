"""The native decoder of a model's parts, its rotary tables, and one call of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qcore import decoder as native
from qcore.torch import Linear
from qcore.transformers.fuse_observation import finish_logits, rotary_rows
from qcore.transformers.fuse_structure import LayerParts, StackParts
from qcore.transformers.kv_cache import KvLayer

_FIRST_POSITIONS = 1024


class Stack:
    """Runs layers of a model by one native call.

    The native decoder is made at the first call, and again when the dtype of the hidden states changes or positions
    outgrow the rotary tables; it shares the modules' quantized weights. On a device, :meth:`run` is where a CUDA graph
    of the step with one token belongs: all that changes from step to step is in ``hidden``, ``positions``, ``past``
    and ``first``, arrays of fixed shape, as long as the caches have room.

    Args:
        parts: the model.
        layers: those of its layers to run; all by default.
        ends: whether the final norm and the head follow.
    """

    def __init__(self, parts: StackParts, layers: Sequence[LayerParts] | None = None, ends: bool = True) -> None:
        self.parts = parts
        self.layers = list(parts.layers if layers is None else layers)
        self.ends = ends
        # The native decoder, and the dtype, positions and regime that it is for: set at once, since threads may call.
        self._made: tuple[Any, Any] = None, None
        self._caches: tuple[list[Any], Any] = [], None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": (None, None), "_caches": ([], None)}

    def release(self) -> None:
        """Drops the native decoder and what it shares with the modules; the next call makes another."""
        self._made, self._caches = (None, None), ([], None)

    @property
    def has_native_head(self) -> bool:
        """Whether the head is quantized, so that the native call computes logits."""
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
    ) -> torch.Tensor:
        """Runs the layers over T tokens of B sequences and appends their keys and values to the caches.

        Args:
            hidden: float32 or bfloat16 [B, T, H], what the first layer gets.
            positions: int [B, T] or [1, T], for the rotary tables.
            caches: one for each layer, of the same length.
            first: int32 [B], the first position that holds a token, or None for 0.
            rows: results are wanted of the last so many tokens of each sequence.
            logits: whether the head's results are wanted, not the final norm's (without ``ends``: the last layer's).

        Returns:
            [B, rows, V] or [B, rows, H] in hidden's dtype.
        """
        batch, tokens, _ = hidden.shape
        positions = positions.to(torch.int32).expand(batch, tokens)
        decoder = self._prepare(hidden.dtype, int(positions.numpy().max()) + 1)
        past = caches[0].length
        for cache in caches:
            cache.reserve(batch, self.parts.kv_heads, self.parts.head_size, past + tokens, hidden.device)
        in_head = logits and self.has_native_head
        out: torch.Tensor = decoder.forward(
            hidden.detach(),
            positions,
            torch.full((batch,), past, dtype=torch.int32),
            self._prepared(caches),
            first=first,
            last=rows,
            result="logits" if in_head else "hidden",
        )
        for cache in caches:
            cache.length = past + tokens
        return finish_logits(self.parts, self.parts.head(out)) if logits and not in_head else out

    def _prepared(self, caches: Sequence[KvLayer]) -> Any:
        """Returns the caches as the native call takes them, made anew when one of them has other arrays."""
        held, made = self._caches
        if len(held) != len(caches) or any(old is not new.arrays for old, new in zip(held, caches, strict=True)):
            held = [cache.arrays for cache in caches]
            made = native.Caches([native.KeyValueCache(*arrays) for arrays in held])
            self._caches = held, made
        return made

    def _prepare(self, dtype: torch.dtype, length: int) -> Any:
        """Returns the native decoder, a new one unless it is for this dtype and its tables have ``length`` rows."""
        self.parts.dtype = dtype
        size, regime = self._positions(length)
        decoder, made_for = self._made
        if decoder is not None:
            made_dtype, made_size, made_regime = made_for
            if made_dtype == dtype and made_regime == regime and made_size >= length:
                return decoder
        decoder = self._make(size)
        self._made = decoder, (dtype, size, regime)
        return decoder

    def _positions(self, length: int) -> tuple[int, Any]:
        """Returns the rows for tables that a call up to ``length`` needs, and what their angles depend on else.

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
        """Returns the longest sequence with the original angles."""
        parameters = self.parts.rotary.config.rope_parameters
        nested = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
        given = [each["original_max_position_embeddings"] for each in nested if "longrope" in each.values()]
        return int(min(given)) if given else int(self.parts.rotary.original_max_seq_len)

    def _make(self, positions: int) -> Any:
        parts = self.parts
        rows = torch.arange(positions)
        head = parts.head if self.has_native_head else None
        return native.Decoder(
            [self._layer(each) for each in self.layers],
            hidden_size=parts.layers[0].linears()[0].in_features,
            heads=parts.heads,
            kv_heads=parts.kv_heads,
            head_size=parts.head_size,
            intermediate_size=parts.layers[0].linears()[-1].in_features,
            dtype="float32" if parts.dtype == torch.float32 else "bfloat16",
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
            rotary=[rotary_rows(parts, rows, name) for name in parts.tables],
            final_norm=parts.final_norm.weight.detach().float() if self.ends else None,
            head=None if head is None else head.weight,
            head_bias=None if head is None or head.bias is None else head.bias.detach().float(),
        )

    def _layer(self, layer: LayerParts) -> Any:
        qkv, out, gate_up, down = (_whole(layer, places) for places in ("qkv", "out", "gate_up", "down"))

        def weight(norm: torch.nn.Module | None) -> torch.Tensor | None:
            return None if norm is None else norm.weight.detach().float()

        def bias(linear: Linear) -> torch.Tensor | None:
            return None if linear.bias is None else linear.bias.detach().float()

        return native.Layer(
            name=layer.name,
            input_norm=weight(layer.input_norm),
            qkv=qkv.weight,
            qkv_bias=bias(qkv),
            q_norm=weight(layer.q_norm),
            k_norm=weight(layer.k_norm),
            out=out.weight,
            out_bias=bias(out),
            post_attention_norm=weight(layer.post_attention_norm),
            mlp_norm=weight(layer.mlp_norm),
            gate_up=gate_up.weight,
            gate_up_bias=bias(gate_up),
            down=down.weight,
            down_bias=bias(down),
            post_mlp_norm=weight(layer.post_mlp_norm),
            window=layer.window,
            rotary=layer.rotary,
        )


def _whole(layer: LayerParts, places: str) -> Linear:
    """Returns the one linear layer of joined places, or of a single one."""
    found = getattr(layer, places)
    parent, name = found[0] if isinstance(found, list) else found
    module: Any = parent._modules[name]
    joint = getattr(module, "joint", None)
    result: Linear = module if joint is None else joint.linear
    return result
