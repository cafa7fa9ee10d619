"""Defines layers of a transformers cache with preallocated keys and values, in floating point or int8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from qcore import _core

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""The name of the cache among the arguments and the results of a model, which transformers 5.24 has changed."""

KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
_FIRST_CAPACITY = 64


class KvLayer(CacheLayerMixin):
    """Holds the keys and values of one layer in arrays [B, Hkv, capacity, D] that grow by doubling.

    An int8 layer has one float32 scale per sequence, head and position: the largest magnitude of the head's D elements
    over 127. All positions stay, also beyond a sliding window, so that the cache can be cropped to any length.

    Args:
        kv_dtype: "float32", "bfloat16", "float16" or "int8", what the arrays hold.
        host_dtype: dtype of :attr:`keys` and :attr:`values`.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, kv_dtype: str, host_dtype: torch.dtype) -> None:
        if kv_dtype not in KV_DTYPES:
            raise _core.QcoreValueError(f"KvLayer: kv_dtype is {kv_dtype!r}, expected one of {', '.join(KV_DTYPES)}")
        self.kv_dtype = kv_dtype
        self.host_dtype = host_dtype
        self.length = 0
        self.arrays: tuple[torch.Tensor, ...] = ()
        """Keys and values, and for int8 their scales [B, Hkv, capacity]."""
        self.is_initialized = False

    def __repr__(self) -> str:
        return f"KvLayer({self.kv_dtype}, length={self.length}, capacity={self.capacity})"

    @property
    def capacity(self) -> int:
        """Return the number of positions that the arrays can hold."""
        return int(self.arrays[0].shape[2]) if self.arrays else 0

    @property
    def batch_size(self) -> int:
        """Return the number of sequences B; it does not exist before the first tokens, as transformers expects."""
        if not self.arrays:
            raise AttributeError("batch_size")
        return int(self.arrays[0].shape[0])

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays, including unused capacity."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def keys(self) -> torch.Tensor | None:
        """Return keys [B, Hkv, length, D] in the host's dtype: a view, or a dequantized copy."""
        return self._read(0)

    @property
    def values(self) -> torch.Tensor | None:
        """Return values [B, Hkv, length, D] in the host's dtype: a view, or a dequantized copy."""
        return self._read(1)

    def _read(self, number: int) -> torch.Tensor | None:
        if not self.arrays:
            return None
        stored = self.arrays[number][:, :, : self.length]
        if self.kv_dtype == "int8":
            return (stored.float() * self.arrays[number + 2][:, :, : self.length, None]).to(self.host_dtype)
        return stored.to(self.host_dtype)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the arrays for key_states [B, Hkv, T, D]; value_states has the same shape."""
        batch, heads, _, size = key_states.shape
        self.reserve(batch, heads, size, 0, key_states.device)

    def reserve(self, batch: int, heads: int, size: int, length: int, device: Any = "cpu") -> None:
        """Allocate arrays for ``length`` positions if these are too short; the tokens that they hold are kept.

        Raises:
            QcoreValueError: the layer holds tokens of another number of sequences, heads or elements.
        """
        if self.arrays and (batch, heads, size) != tuple(self.arrays[0].shape[i] for i in (0, 1, 3)):
            if self.length:
                raise _core.QcoreValueError(
                    f"KvLayer: the call has [B, Hkv, D] = {[batch, heads, size]}, expected those of the cache, "
                    f"{[self.arrays[0].shape[i] for i in (0, 1, 3)]}"
                )
            self.arrays = ()
        if self.arrays and length <= self.capacity:
            return
        capacity = max(_FIRST_CAPACITY, self.capacity)
        while capacity < length:
            capacity *= 2
        dtype = KV_DTYPES[self.kv_dtype]
        shapes: list[tuple[tuple[int, ...], torch.dtype]] = [((batch, heads, capacity, size), dtype)] * 2
        if self.kv_dtype == "int8":
            shapes += [((batch, heads, capacity), torch.float32)] * 2
        # Allocated outside of inference mode, because a later call without it could not write to its tensors.
        with torch.inference_mode(False):
            made = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes)
            for new, old in zip(made, self.arrays, strict=False):
                new[:, :, : self.length] = old[:, :, : self.length]
        self.arrays = made
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values [B, Hkv, T, D] and return all of them in the host's dtype."""
        batch, heads, tokens, size = key_states.shape
        end = self.length + tokens
        self.reserve(batch, heads, size, end, key_states.device)
        for number, states in enumerate((key_states, value_states)):
            if self.kv_dtype == "int8":
                codes, scales = quantize_heads(states)
                self.arrays[number][:, :, self.length : end] = codes
                self.arrays[number + 2][:, :, self.length : end] = scales
            else:
                self.arrays[number][:, :, self.length : end] = states.detach()
        self.length = end
        keys, values = self.keys, self.values
        assert keys is not None and values is not None
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys of a call with ``query_length`` tokens, and the position of the first."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens held."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    def reset(self) -> None:
        """Forget all tokens; the arrays stay for the next ones."""
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last ``-tokens_to_remove`` tokens.

        Raises:
            QcoreValueError: tokens_to_remove is positive, which transformers' layers refuse too.
        """
        if tokens_to_remove > 0:
            raise _core.QcoreValueError(
                f"KvLayer.crop: tokens_to_remove is {tokens_to_remove}, expected 0 or a negative number"
            )
        self.length = max(0, self.length + tokens_to_remove)

    def offload(self) -> None:
        """Raise an error, because an offloaded cache is not supported."""
        raise _core.QcoreValueError("KvLayer: the cache is to be offloaded, expected one that stays on its device")

    def prefetch(self) -> None:
        """Raise an error, because an offloaded cache is not supported."""
        self.offload()

    def _select(self, make: Any) -> None:
        if self.arrays:
            with torch.inference_mode(False):
                self.arrays = tuple(make(array) for array in self.arrays)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Reorder the sequences by ``beam_idx`` [B], as a beam search does after each token."""
        index = beam_idx.clone() if beam_idx.is_inference() else beam_idx
        if self.arrays and self.arrays[0].is_cuda and index.shape[0] == self.arrays[0].shape[0]:
            # The arrays stay where they are, since a CUDA graph of a step holds their addresses.
            for array in self.arrays:
                held = array[:, :, : self.length]
                held.copy_(held.index_select(0, index.to(array.device)))
            return
        self._select(lambda array: array.index_select(0, index.to(array.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence ``repeats`` times."""
        self._select(lambda array: array.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the sequences ``indices``, numbers or a mask."""
        index = indices.clone() if indices.is_inference() else indices
        self._select(lambda array: array[index.to(array.device)].contiguous())


def quantize_heads(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes of states [B, Hkv, T, D] and the scales [B, Hkv, T]: a head's largest magnitude / 127.

    Codes are rounded half to even. A head with a NaN or an infinity gets the scale NaN and codes 0.
    """
    x = states.detach().float()
    scales = x.abs().amax(-1) / 127
    finite = torch.isfinite(x).all(-1)
    inverse = torch.where(scales > 0, 1 / scales, torch.zeros_like(scales))
    codes = torch.where(finite[..., None], torch.round(x * inverse[..., None]), 0).clamp(-127, 127).to(torch.int8)
    return codes, torch.where(finite, scales, torch.nan)


def unsupported_reason(cache: Any, layers: int) -> str:
    """Return why the keys and values of a cache cannot be kept in :class:`KvLayer` objects; empty if they can."""
    if type(cache) is not DynamicCache:
        return f"{CACHE} is a {type(cache).__name__}, expected a DynamicCache"
    if cache.offloading:
        return f"{CACHE} is offloaded"
    if len(cache.layers) not in (0, layers):
        return f"{CACHE} has {len(cache.layers)} layers, expected {layers}"
    for layer in cache.layers:
        if type(layer) is KvLayer:
            continue
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            return f"{CACHE} has a {type(layer).__name__}, expected a DynamicLayer"
        if layer.is_initialized and layer.keys.shape[-2] != layer.get_seq_length():
            return f"{CACHE} has lost tokens before its sliding window"
    return ""


def adopt(cache: Cache, layers: int, kv_dtype: str, host_dtype: torch.dtype) -> Sequence[KvLayer]:
    """Exchange the layers of a DynamicCache for :class:`KvLayer` objects, tokens included, and return them."""
    if len(cache.layers) == layers and type(cache.layers[0]) is KvLayer:
        held: Sequence[KvLayer] = cache.layers
        return held
    made = []
    for number in range(layers):
        layer = KvLayer(kv_dtype, host_dtype)
        old = cache.layers[number] if cache.layers else None
        if old is not None and old.is_initialized and old.get_seq_length():
            layer.update(old.keys, old.values)
        made.append(layer)
    cache.layers[:] = made
    cache.layer_class_to_replicate = None
    return made
