"""Rounds weights to 4 bits and back, by llama.cpp's formats and by qcore's methods, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants

import qcore

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Method:
    """Holds a way to round the weight of a linear layer.

    Attributes:
        name: for tables.
        bits_per_weight: codes, scales and offsets together.
        rounded: turns a float32 weight [N, K] and inputs of its layer [M, K] into what is left of the weight.
        options: arguments of :func:`qcore.quantize`; empty for other formats.
    """

    name: str
    bits_per_weight: float
    rounded: Callable[[Array, Array], Array]
    options: dict[str, Any]

    def quantized(self, weight: Array, samples: Array) -> qcore.QuantizedTensor:
        """Return the weight as qcore stores it."""
        return _quantized(weight, samples, self.options)


def _quantized(weight: Array, samples: Array, options: dict[str, Any]) -> qcore.QuantizedTensor:
    given = options | ({"samples": samples} if options["method"] in ("awq", "gptq") else {})
    return qcore.quantize(weight, bits=4, scale_dtype="float16", **given)


def _llama_cpp(name: str, bits_per_weight: float) -> Method:
    kind = GGMLQuantizationType[name]

    def rounded(weight: Array, samples: Array) -> Array:
        found: Array = quants.dequantize(quants.quantize(weight, kind), kind).reshape(weight.shape)
        return found

    return Method(f"llama.cpp {name}", bits_per_weight, rounded, {})


def _ours(scheme: str, block_size: int, method: str) -> Method:
    options = {"scheme": scheme, "block_size": block_size, "method": method}
    parameters = 16 if scheme == "symmetric" else 32

    def rounded(weight: Array, samples: Array) -> Array:
        found: Array = _quantized(weight, samples, options).dequantize()
        return found

    return Method(f"{scheme}, g = {block_size}, {method}", 4 + parameters / block_size, rounded, options)


def _encoded(name: str, bits_per_weight: float, method: str) -> Method:
    def rounded(weight: Array, samples: Array) -> Array:
        given = samples if method == "awq" else None
        found: Array = qcore.quantize_encoded(weight, name, method=method, samples=given).dequantize()  # type: ignore[arg-type]
        return found

    return Method(f"{name.upper()}, {method}", bits_per_weight, rounded, {})


def all_methods() -> list[Method]:
    """Return llama.cpp's formats and qcore's methods, by bits per weight and name."""
    found = [_llama_cpp("Q4_0", 4.5), _llama_cpp("Q4_1", 5.0)]
    for scheme, block_size in (("symmetric", 32), ("asymmetric", 64), ("symmetric", 16), ("asymmetric", 32)):
        found += [_ours(scheme, block_size, method) for method in ("rtn", "mse", "awq", "gptq")]
    for name, bits_per_weight in (("iq4_nl", 4.5), ("q4_1", 5.0)):
        found += [_encoded(name, bits_per_weight, method) for method in ("mse", "awq")]
    return sorted(found, key=lambda each: each.bits_per_weight)


def sample_texts(model: Any, seed: int, count: int, length: int = 200) -> list[list[int]]:
    """Return texts that the model samples at temperature 1, each up to its end.

    Args:
        model: a causal language model whose texts begin with token 1 and end with token 1 or 2.
        seed: of the sampling.
        count: number of texts.
        length: largest number of new tokens.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        starts = torch.ones((count, 1), dtype=torch.long)
        options = {"do_sample": True, "top_k": 0, "temperature": 1.0, "pad_token_id": 0}
        made = model.generate(starts, attention_mask=starts, max_new_tokens=length, **options)
    texts = []
    for row in made.tolist():
        end = next((i for i, token in enumerate(row) if i and token in (0, 1, 2)), len(row))
        texts.append(row[:end])
    return texts


def linear_layers(model: Any, head: bool) -> dict[str, torch.nn.Linear]:
    """Return the linear layers of a model by name, with or without the head."""
    skipped = None if head else model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not skipped
    }


def layer_inputs(model: Any, texts: list[list[int]]) -> dict[str, Array]:
    """Return the inputs [M, K] that the model's linear layers get from some texts."""
    seen: dict[str, list[torch.Tensor]] = {}
    layers = linear_layers(model, head=True)

    def watch(name: str) -> Any:
        return lambda module, given, result: seen.setdefault(name, []).append(given[0].flatten(0, -2))

    hooks = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            for text in texts:
                model(torch.tensor([text]))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts).numpy() for name, parts in seen.items()}
