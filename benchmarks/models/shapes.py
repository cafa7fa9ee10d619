"""Models of known shapes with seeded random weights, written layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
}
_QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _QWEN
    | _sizes(896, 4864, 24, 14, 2, 151936)
    | {"tie_word_embeddings": True, "max_position_embeddings": 32768, "rope_theta": 1e6},
    "tinyllama-1.1b": _LLAMA
    | _sizes(2048, 5632, 22, 32, 4, 32000)
    | {"tie_word_embeddings": False, "max_position_embeddings": 2048, "rope_theta": 1e4},
    "llama-3.2-1b": _LLAMA
    | _sizes(2048, 8192, 16, 32, 8, 128256)
    | {"tie_word_embeddings": True, "max_position_embeddings": 8192, "rope_theta": 5e5, "head_dim": 64},
    "tiny": _LLAMA
    | _sizes(128, 256, 2, 4, 2, 512)
    | {"tie_word_embeddings": False, "max_position_embeddings": 2048, "rope_theta": 1e4},
}


def write(shape: str, folder: Path, seed: int = 0) -> None:
    """Write a folder of transformers in bfloat16 with a file for each layer; one layer is in memory at a time.

    Args:
        shape: a key of :data:`SHAPES`.
        folder: an existing, empty folder.
        seed: of the weights, which are normal with the variance 1 / K; norms are near 1.
    """
    config = SHAPES[shape]
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = size * config["num_attention_heads"], size * config["num_key_value_heads"]
    layers = config["num_hidden_layers"]
    biased = config["model_type"] == "qwen2"
    index: dict[str, str] = {}
    total = 0

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(scale * columns**-0.5).bfloat16()

    def vector(count: int, mean: float) -> torch.Tensor:
        return (torch.randn(count, generator=generator) * 0.1 + mean).bfloat16()

    def save(number: int, tensors: dict[str, torch.Tensor]) -> None:
        nonlocal total
        name = f"model-{number:05d}-of-{layers + 1:05d}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(tensors, name))
        total += sum(tensor.nbytes for tensor in tensors.values())

    for number in range(layers):
        prefix = f"model.layers.{number}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        tensors = {
            f"{prefix}input_layernorm.weight": vector(hidden, 1.0),
            f"{prefix}post_attention_layernorm.weight": vector(hidden, 1.0),
            f"{attention}q_proj.weight": matrix(q, hidden),
            f"{attention}k_proj.weight": matrix(kv, hidden),
            f"{attention}v_proj.weight": matrix(kv, hidden),
            f"{attention}o_proj.weight": matrix(hidden, q),
            f"{mlp}gate_proj.weight": matrix(inner, hidden),
            f"{mlp}up_proj.weight": matrix(inner, hidden),
            f"{mlp}down_proj.weight": matrix(hidden, inner),
        }
        if biased:
            for name, count in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                tensors[f"{attention}{name}.bias"] = vector(count, 0.0)
        save(number + 1, tensors)
    ends = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden, hidden**0.5 * 0.05),
        "model.norm.weight": vector(hidden, 1.0),
    }
    if not config["tie_word_embeddings"]:
        ends["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    save(layers + 1, ends)
    known = {"hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16"}
    _json(folder / "config.json", config | known)
    _json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    _tokenizer(folder, config["vocab_size"])


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


def _tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer of made-up words, because some converters insist on one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", bos_token="w1", eos_token="w2")
    fast.save_pretrained(folder)
