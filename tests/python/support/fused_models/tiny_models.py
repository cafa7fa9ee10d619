"""Tiny random models of the families that fuse_ knows."""

import torch
import transformers

import qcore.torch

_SHAPE = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)


def config(name, **options):
    """Return the configuration of a tiny model of a family."""
    return getattr(transformers, f"{name}Config")(**_SHAPE | options)


def _windows(kinds):
    return ["sliding_attention" if kind == "s" else "full_attention" for kind in kinds]


LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
LONGROPE = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    short_factor=[1.0] * 6,
    long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 5.0],
    original_max_position_embeddings=32,
    partial_rotary_factor=0.75,
)

CONFIGS = {
    "llama": lambda: config("Llama"),
    "llama-biases": lambda: config("Llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama-llama3": lambda: config("Llama", rope_parameters=LLAMA3),
    "llama-yarn": lambda: config("Llama", rope_parameters=YARN),
    "llama-linear": lambda: config("Llama", rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)),
    "llama-dynamic": lambda: config(
        "Llama",
        max_position_embeddings=24,
        rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=4.0),
    ),
    "qwen2": lambda: config("Qwen2"),
    "qwen2-window": lambda: config(
        "Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1, layer_types=_windows("fss")
    ),
    "qwen3": lambda: config("Qwen3", head_dim=32),
    "mistral": lambda: config("Mistral", sliding_window=8),
    "phi3": lambda: config("Phi3"),
    "phi3-longrope": lambda: config("Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32),
    "gemma": lambda: config("Gemma", head_dim=32),
    "gemma2": lambda: config(
        "Gemma2",
        head_dim=32,
        sliding_window=8,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        layer_types=_windows("sfs"),
    ),
    "gemma3": lambda: config(
        "Gemma3Text", head_dim=32, sliding_window=8, query_pre_attn_scalar=20, layer_types=_windows("sfs")
    ),
    "granite": lambda: config(
        "Granite",
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.4,
        logits_scaling=2.0,
    ),
    "smollm3": lambda: config(
        "SmolLM3", no_rope_layers=[1, 0, 1], use_sliding_window=False, layer_types=_windows("fff")
    ),
    "exaone4": lambda: config(
        "Exaone4", head_dim=16, sliding_window=8, sliding_window_pattern=2, layer_types=_windows("sfs")
    ),
    "glm4": lambda: config("Glm4", head_dim=16),
    "helium": lambda: config("Helium", head_dim=16),
}


def make(name, dtype=torch.float32, *, bits=8, compute="int8", seed=0):
    """Return a quantized model of a family, with weights that give logits some distance from one another."""
    torch.manual_seed(seed)
    chosen = CONFIGS[name]()
    model = transformers.AutoModelForCausalLM.from_config(chosen, dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.0 if "embed" in key else parameter.shape[1] ** -0.5))
    model = model.to(dtype).eval()
    model.generation_config.eos_token_id = None
    form = {"block_size": 32, "method": "rtn", "scale_dtype": "float32"}
    qcore.torch.quantize_(model, bits=bits, compute=compute, progress=False, **form)
    return model
