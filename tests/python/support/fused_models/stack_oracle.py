"""The arithmetic of include/qcore/decoder.h in torch: an independent oracle of qcore.decoder.Decoder.

Operators between the products are written from their definitions, in float64 and rounded to the dtype of the stack
after each; products are qcore.linear's, which has an oracle of its own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import qcore


class KeyValueCache(tuple):
    """Keys, values and their scales."""

    def __new__(cls, *arrays):
        return super().__new__(cls, arrays)


Caches = list
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_GATES = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
}


@dataclass
class Layer:
    qkv: Any
    out: Any
    gate_up: Any
    down: Any
    input_norm: Any = None
    qkv_bias: Any = None
    q_norm: Any = None
    k_norm: Any = None
    out_bias: Any = None
    post_attention_norm: Any = None
    mlp_norm: Any = None
    gate_up_bias: Any = None
    down_bias: Any = None
    post_mlp_norm: Any = None
    window: int = 0
    rotary: int = 0
    name: str = ""


class Decoder:
    def __init__(self, layers, *, final_norm=None, head=None, head_bias=None, rotary=(), **options):
        self.layers, self.final_norm, self.head, self.head_bias = layers, final_norm, head, head_bias
        self.rotary, self.options = rotary, options
        self.dtype = _DTYPES[options["dtype"]]

    def __getattr__(self, name):
        return self.options[name]

    def forward(self, hidden, positions, past, caches, *, first=None, last=1, result="logits", max_length=0):
        x = hidden.to(self.dtype)
        if (scale := self.options.get("input_multiplier", 1.0)) != 1.0:
            x = (x.double() * scale).to(self.dtype)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = self._layer(layer, x, positions, past, cache, first)
        x = x if last is None else x[:, x.shape[1] - last :]
        x = self._norm(x, self.final_norm)
        if result == "hidden":
            return x
        y = qcore.linear(x, self.head, self.head_bias, compute=self.head_compute).double() * self.logit_multiplier
        if self.logit_soft_cap:
            y = torch.tanh(y / self.logit_soft_cap) * self.logit_soft_cap
        return y.to(hidden.dtype)

    def _norm(self, x, weight):
        if weight is None:
            return x
        wide = x.double()
        normalized = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.round_normalized:
            normalized = normalized.to(self.dtype).double()
        return (normalized * (weight.double() + self.norm_offset)).to(self.dtype)

    def _product(self, x, weights, bias):
        """Multiply by weights whose rows follow each other; a bias is that of all rows."""
        parts = weights if isinstance(weights, list) else [weights]
        ends = np.cumsum([weight.shape[0] for weight in parts])
        biases = [None if bias is None else bias[end - w.shape[0] : end] for w, end in zip(parts, ends, strict=True)]
        products = [qcore.linear(x, *each, compute=self.compute) for each in zip(parts, biases, strict=True)]
        return torch.cat(products, dim=-1)

    def _layer(self, layer, x, positions, past, cache, first):
        batch, tokens, _ = x.shape
        heads, kv_heads, size = self.heads, self.kv_heads, self.head_size
        a = self._norm(x, layer.input_norm)
        parts = self._product(a, layer.qkv, layer.qkv_bias).reshape(batch, tokens, heads + 2 * kv_heads, size)
        q, k, v = parts.split([heads, kv_heads, kv_heads], dim=2)
        q = self._rotate(q if layer.q_norm is None else self._norm(q, layer.q_norm), positions, layer.rotary)
        k = self._rotate(k if layer.k_norm is None else self._norm(k, layer.k_norm), positions, layer.rotary)
        self._store(cache, k, v, past)
        y = self._attention(q, cache, past, first, layer.window)
        y = self._product(y.reshape(batch, tokens, heads * size), layer.out, layer.out_bias)
        x = self._add(x, y, layer.post_attention_norm)
        a = self._norm(x, layer.mlp_norm)
        gate, up = self._product(a, layer.gate_up, layer.gate_up_bias).double().chunk(2, dim=-1)
        a = (_GATES[self.activation](gate) * up).to(self.dtype)
        return self._add(x, self._product(a, layer.down, layer.down_bias), layer.post_mlp_norm)

    def _add(self, x, y, norm):
        y = y if norm is None else self._norm(y, norm)
        return (x.double() + y.double() * self.residual_multiplier).to(self.dtype)

    def _rotate(self, x, positions, table):
        if table < 0:
            return x
        cos, sin = (each[positions.long()].double()[:, :, None] for each in self.rotary[table])
        size = cos.shape[-1]
        part, rest = x[..., :size].double(), x[..., size:]
        if self.rotary_layout == "interleaved":
            turned = torch.stack((-part[..., 1::2], part[..., 0::2]), dim=-1).flatten(-2)
        else:
            turned = torch.cat((-part[..., size // 2 :], part[..., : size // 2]), dim=-1)
        return torch.cat(((part * cos + turned * sin).to(x.dtype), rest), dim=-1)

    @staticmethod
    def _store(cache, k, v, past):
        for number, states in enumerate((k, v)):
            for row, begin in enumerate(past.tolist()):
                heads = states[row].transpose(0, 1)  # [Hkv, T, D]
                place = (row, slice(None), slice(begin, begin + heads.shape[1]))
                if cache[number].dtype == torch.int8:
                    scale = heads.float().abs().amax(-1) / 127
                    inverse = torch.where(scale > 0, 1 / scale, 0.0)
                    cache[number][place] = (
                        torch.round(heads.float() * inverse[..., None]).clamp(-127, 127).to(torch.int8)
                    )
                    cache[number + 2][place] = scale
                else:
                    cache[number][place] = heads.to(cache[number].dtype)

    def _attention(self, q, cache, past, first, window):
        tokens = q.shape[1]
        end = int(past.max()) + tokens
        keys, values = (self._read(cache, number, end) for number in (0, 1))
        group = self.heads // self.kv_heads
        keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
        scores = torch.einsum("bthd,bhkd->bhtk", q.double(), keys) * (self.attention_scale or self.head_size**-0.5)
        if self.attention_soft_cap:
            scores = torch.tanh(scores / self.attention_soft_cap) * self.attention_soft_cap
        own = (past[:, None] + torch.arange(tokens))[:, None, :, None]
        at = torch.arange(end)
        visible = at <= own
        if first is not None:
            visible = visible & (at >= first[:, None, None, None])
        if window:
            visible = visible & (at > own - window)
        weights = torch.nan_to_num(scores.masked_fill(~visible, -torch.inf).softmax(-1))
        return torch.einsum("bhtk,bhkd->bthd", weights, values).to(self.dtype)

    @staticmethod
    def _read(cache, number, end):
        stored = cache[number][:, :, :end].double()
        if cache[number].dtype == torch.int8:
            return stored * cache[number + 2][:, :, :end, None].double()
        return stored
