"""vLLM's own layers: its CPU platform, a group of one process, ranks that tests choose, folders of small models."""

import contextlib
import importlib
import json

import numpy as np
import torch
import vllm.platforms
from safetensors.torch import save_file
from torch.nn import functional
from vllm.platforms.cpu import CpuPlatform

import qcore

# Before any module of vLLM binds it: a wheel of vLLM for CUDA finds no platform here.
vllm.platforms._current_platform = vllm.platforms.current_platform = CpuPlatform()

linear_layers = importlib.import_module("vllm.model_executor.layers.linear")
vocabulary_layers = importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding")
_parameters = importlib.import_module("vllm.model_executor.parameter")
_config = importlib.import_module("vllm.config")
_distributed = importlib.import_module("vllm.distributed")
_loader = importlib.import_module("vllm.model_executor.model_loader.utils")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
PROJECTIONS = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
}
EXPERT = {"w1": (128, 64), "w2": (64, 128), "w3": (128, 64)}
QUANTIZATION = {
    "quant_method": "qcore",
    "bits": 4,
    "block_size": 32,
    "scheme": "asymmetric",
    "scale_dtype": "float16",
    "compute": "float",
}


@contextlib.contextmanager
def in_vllm(folder):
    """Enter vLLM's context: a config, and a group of one process."""
    config = _config.VllmConfig()
    with _config.set_current_vllm_config(config):
        _distributed.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        _distributed.ensure_model_parallel_initialized(1, 1)
        yield config


@contextlib.contextmanager
def on_rank(rank, ranks):
    """Make layers that are created and loaded inside those of one rank of several."""
    with contextlib.ExitStack() as stack:
        for module in (linear_layers, vocabulary_layers, _parameters):
            for name, value in (("rank", rank), ("world_size", ranks)):
                stack.enter_context(replaced(module, f"get_tensor_model_parallel_{name}", lambda value=value: value))
        yield


@contextlib.contextmanager
def replaced(module, name, value):
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


def load_model(folder, tensors, dtype="float32", device="cpu", **options):
    """Return vLLM's model of a folder with config.json, with weights from an iterable of names and tensors."""
    model_config = _config.ModelConfig(
        model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype=dtype, **options
    )
    config = _config.VllmConfig(model_config=model_config)
    with _config.set_current_vllm_config(config), torch.device(device):
        model = _loader.initialize_model(vllm_config=config, model_config=model_config)
        loaded = model.load_weights(tensors)
        _loader.process_weights_after_loading(model, model_config, torch.device(device))
    return model, loaded


def random(*shape, seed):
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)) * 0.1


def write_folder(folder, architecture, kind, quantized, floats, quantization=QUANTIZATION, suffix=""):
    """Write a folder as save_pretrained of a quantized model does; returns the float values of all tensors."""
    config = SIZES | {"architectures": [architecture], "model_type": kind, "rms_norm_eps": 1e-6}
    if kind == "mixtral":
        config |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    tensors, values = dict(floats), dict(floats)
    for name, value in quantized.items():
        if quantization is None:
            tensors[f"{name}.weight"] = values[f"{name}.weight"] = value
            continue
        weight = qcore.quantize(value, bits=4, block_size=32, scheme="asymmetric", scale_dtype="float16")
        values[f"{name}.weight"] = torch.from_numpy(weight.dequantize())
        tensors[f"{name}{suffix}.codes"] = torch.from_numpy(weight.nibbles())
        tensors[f"{name}{suffix}.scales"] = torch.from_numpy(weight.scales()).half()
        tensors[f"{name}{suffix}.offsets"] = torch.from_numpy(weight.offsets()).half()
        tensors[f"{name}.qcore_config"] = torch.zeros(3, dtype=torch.uint8)
    save_file(tensors, str(folder / "model.safetensors"))
    return tensors, values


def llama(folder, **options):
    quantized = {
        f"model.layers.{i}.{name}": random(*shape, seed=i) for i in range(2) for name, shape in PROJECTIONS.items()
    } | {"lm_head": random(100, 64, seed=9)}
    norms = [f"model.layers.{i}.{name}" for i in range(2) for name in ("input_layernorm", "post_attention_layernorm")]
    floats = {f"{name}.weight": torch.ones(64) for name in (*norms, "model.norm")}
    floats["model.embed_tokens.weight"] = random(100, 64, seed=8)
    return write_folder(folder, "LlamaForCausalLM", "llama", quantized, floats, **options)


def mixtral(folder, **options):
    attention = {name: shape for name, shape in PROJECTIONS.items() if name.startswith("self_attn")}
    quantized = {
        f"model.layers.{i}.{name}": random(*shape, seed=i) for i in range(2) for name, shape in attention.items()
    }
    moe = "block_sparse_moe"
    for i in range(2):
        for expert in range(4):
            for name, shape in EXPERT.items():
                quantized[f"model.layers.{i}.{moe}.experts.{expert}.{name}"] = random(*shape, seed=10 * i + expert)
    norms = [f"model.layers.{i}.{name}" for i in range(2) for name in ("input_layernorm", "post_attention_layernorm")]
    floats = {f"{name}.weight": torch.ones(64) for name in (*norms, "model.norm")}
    floats |= {f"model.layers.{i}.{moe}.gate.weight": random(4, 64, seed=i) for i in range(2)}
    floats |= {"model.embed_tokens.weight": random(100, 64, seed=8), "lm_head.weight": random(100, 64, seed=9)}
    return write_folder(folder, "MixtralForCausalLM", "mixtral", quantized, floats, **options)


def experts_of(model):
    return next(m for m in model.model.layers[1].modules() if type(m).__name__ == "RoutedExperts")


def expected_sum(values, x, weights, ids, only=range(4)):
    y = torch.zeros_like(x)
    for expert in only:
        w1, w2, w3 = (
            values[f"model.layers.1.block_sparse_moe.experts.{expert}.{n}.weight"] for n in ("w1", "w2", "w3")
        )
        share = (weights * (ids == expert)).sum(-1, keepdim=True)
        y += share * ((functional.silu(x @ w1.T) * (x @ w3.T)) @ w2.T)
    return y
