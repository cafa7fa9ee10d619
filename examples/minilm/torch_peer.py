"""The same encoder in torch: fp32, torch's dynamic int8, and qcore's modules put into it by quantize_."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from minilm import Array, MiniLM
from torch import nn

import qcore.torch


class TorchMiniLM(MiniLM):
    """MiniLM whose softmax, gelu and norms are torch's, and its products too unless they are quantized.

    Args:
        quantized: None, "torch" for quantize_dynamic, or options of ``qcore.torch.quantize_``.
    """

    def __init__(self, *arguments: Any, quantized: str | dict[str, Any] | None = None) -> None:
        super().__init__(*arguments)
        layers = {}
        for name, weight in self.weights.items():
            if name.startswith("encoder.") and weight.ndim == 2:
                layer = nn.Linear(weight.shape[1], weight.shape[0])
                layer.weight.data = torch.from_numpy(weight)
                layer.bias.data = torch.from_numpy(self.weights[name.removesuffix("weight") + "bias"])
                layers[name.removesuffix(".weight").replace(".", "/")] = layer
        self.linears = nn.ModuleDict(layers)
        if isinstance(quantized, dict):
            qcore.torch.quantize_(self.linears, **quantized)
        elif quantized == "torch":
            self.linears = torch.ao.quantization.quantize_dynamic(self.linears, {nn.Linear}, dtype=torch.qint8)
        self.norms = {name: torch.from_numpy(weight) for name, weight in self.weights.items() if weight.ndim < 3}

    def embed(self, ids: Array, mask: Array) -> Array:
        with torch.inference_mode():
            vectors: Array = self._embed(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
        return vectors

    def _embed(self, ids: Any, mask: Any) -> Any:
        h = self.norms["embeddings.word_embeddings.weight"][ids]
        h = h + self.norms["embeddings.position_embeddings.weight"][: ids.shape[1]]
        h = self._norm("embeddings.LayerNorm", h + self.norms["embeddings.token_type_embeddings.weight"][:1])
        for layer in range(self.layers):
            name = f"encoder.layer.{layer}"
            split = (*h.shape[:2], self.heads, -1)
            q, k, v = (
                self._linear(f"{name}.attention.self.{part}", h).reshape(split).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            visible = (mask[:, None, None, :] > 0).expand(-1, 1, ids.shape[1], -1)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            attended = self._linear(f"{name}.attention.output.dense", mixed.transpose(1, 2).reshape(h.shape))
            h = self._norm(f"{name}.attention.output.LayerNorm", attended + h)
            inner = nn.functional.gelu(self._linear(f"{name}.intermediate.dense", h))
            h = self._norm(f"{name}.output.LayerNorm", self._linear(f"{name}.output.dense", inner) + h)
        pooled = (h * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return nn.functional.normalize(pooled, dim=1)

    def _linear(self, name: str, x: Any) -> Any:
        return self.linears[name.replace(".", "/")](x)

    def _norm(self, name: str, x: Any) -> Any:
        weight, bias = self.norms[f"{name}.weight"], self.norms[f"{name}.bias"]
        return nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, self.eps)


def linear_bytes(weights: dict[str, Any], bits: int) -> int:
    """Size of the encoder's linear weights, without the scale of each tensor."""
    return sum(
        int(np.prod(weight.shape)) * bits // 8
        for name, weight in weights.items()
        if name.startswith("encoder.") and weight.ndim == 2
    )
