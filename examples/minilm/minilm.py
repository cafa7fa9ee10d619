"""MiniLM sentence embeddings with NumPy, tokenizers and qcore: no deep-learning framework."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import qcore

Array = np.ndarray[Any, Any]
Watch = Callable[[str, Array], None]


class MiniLM:
    """The encoder of sentence-transformers/all-MiniLM-L6-v2.

    Args:
        folder: with config.json and tokenizer.json.
        weights: name -> array or QuantizedTensor, by the checkpoint's names. Linear layers run through ``qcore.linear``
            where they are quantized, softmax and gelu through ``qcore.lut`` then.
        compute: of ``qcore.linear``.
        watch: called with the name and the input [rows, K] of every linear layer.
    """

    def __init__(
        self, folder: Path, weights: Mapping[str, Any], *, compute: str = "int8", watch: Watch | None = None
    ) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.heads: int = config["num_attention_heads"]
        self.layers: int = config["num_hidden_layers"]
        self.eps: float = config["layer_norm_eps"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()
        self.weights = weights
        self.quantized = any(isinstance(weight, qcore.QuantizedTensor) for weight in weights.values())
        self.compute, self.watch = compute, watch

    def encode(self, sentences: Sequence[str], batch: int = 32) -> Array:
        """Return unit vectors, float32 [sentences, 384]."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        vectors: list[Array | None] = [None] * len(sentences)
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            tokens = self.tokenizer.encode_batch([sentences[i] for i in chosen])
            ids = np.array([each.ids for each in tokens])
            mask = np.array([each.attention_mask for each in tokens], np.float32)
            for i, vector in zip(chosen, self.embed(ids, mask), strict=True):
                vectors[i] = vector
        return np.array(vectors)

    def embed(self, ids: Array, mask: Array) -> Array:
        """Token ids and 0/1 masks [B, T] -> float32 [B, 384]."""
        place = "embeddings"
        h = self.rows(f"{place}.word_embeddings.weight", ids)
        h = h + self.rows(f"{place}.position_embeddings.weight", np.arange(ids.shape[1]))
        h = h + self.rows(f"{place}.token_type_embeddings.weight", np.zeros(1, np.int64))
        h = self.norm(f"{place}.LayerNorm", h)
        hidden = (mask[:, None, None, :] - 1) * np.float32(1e4)  # what attention must not see
        for layer in range(self.layers):
            name = f"encoder.layer.{layer}"
            attended = self.linear(f"{name}.attention.output.dense", self.attend(f"{name}.attention.self", h, hidden))
            h = self.norm(f"{name}.attention.output.LayerNorm", attended + h)
            inner = self.gelu(self.linear(f"{name}.intermediate.dense", h))
            h = self.norm(f"{name}.output.LayerNorm", self.linear(f"{name}.output.dense", inner) + h)
        pooled = (h * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        unit: Array = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit

    def attend(self, name: str, h: Array, hidden: Array) -> Array:
        batch, steps, size = h.shape
        split = (batch, steps, self.heads, size // self.heads)
        q, k, v = (
            self.linear(f"{name}.{part}", h).reshape(split).transpose(0, 2, 1, 3) for part in ("query", "key", "value")
        )
        scores = self.softmax(q @ k.transpose(0, 1, 3, 2) / np.float32(np.sqrt(split[3])) + hidden)
        mixed: Array = (scores @ v).transpose(0, 2, 1, 3).reshape(batch, steps, size)
        return mixed

    def linear(self, name: str, x: Array) -> Array:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        if self.watch:
            self.watch(name, x.reshape(-1, x.shape[-1]))
        if isinstance(weight, qcore.QuantizedTensor):
            y: Array = qcore.linear(np.ascontiguousarray(x), weight, bias, compute=self.compute)
            return y
        product: Array = x @ weight.T + bias
        return product

    def rows(self, name: str, index: Array) -> Array:
        found: Array = self.weights[name][index]
        return found

    def norm(self, name: str, x: Array) -> Array:
        centered = x - x.mean(axis=-1, keepdims=True)
        scaled = centered / np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + np.float32(self.eps))
        y: Array = scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return y

    def softmax(self, x: Array) -> Array:
        if self.quantized:
            y: Array = qcore.lut.softmax(x)
            return y
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        share: Array = e / e.sum(axis=-1, keepdims=True)
        return share

    def gelu(self, x: Array) -> Array:
        if self.quantized:
            y: Array = qcore.lut.gelu(x)
            return y
        return _exact_gelu(x)


def _exact_gelu(x: Array) -> Array:
    """Through erf, which NumPy lacks: Abramowitz and Stegun 7.1.26, 1.5e-7 exact."""
    z = np.abs(x) / np.float32(np.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * z)
    polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1 - polynomial * np.exp(-z * z))
    y: Array = (x * (1 + erf) / 2).astype(np.float32)
    return y
