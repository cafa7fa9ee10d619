"""Folders of tiny random models of transformers: float ones, and ones in the formats of other programs."""

import json
import re
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import qcore
from qcore import formats

TOKENS = torch.arange(1, 17)[None] * 5


def llama(tie=False, dtype=torch.float32, **sizes):
    """Return a decoder with biases, two layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 96,
            "attention_bias": True,
            "tie_word_embeddings": tie,
            "max_position_embeddings": 64,
            "initializer_range": 0.1,
        }
        | sizes
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model.to(dtype)


def float_folder(path, model=None):
    """Save a model and return its folder."""
    (llama() if model is None else model).save_pretrained(path)
    return Path(path)


def logits(model, **inputs):
    """Logits of a fixed text, on the model's device."""
    with torch.no_grad():
        return model(
            **{name: value.to(model.device) for name, value in (inputs or {"input_ids": TOKENS}).items()}
        ).logits


def kl(p, q):
    """Mean KL divergence of the distributions that two arrays of logits stand for."""
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


def rewritten(source, target, quantization_config, encode, keep=("lm_head",)):
    """Write a folder in which every linear layer's weight is what ``encode(name, matrix)`` gives by part.

    ``encode`` returns the parts and the float matrix that they stand for; the latter are returned by name.
    """
    target = Path(target)
    target.mkdir()
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": quantization_config}))
    tensors, values = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not re.search(r"(proj|experts\.\d+\.w[123])\.weight$", name) or any(word in name for word in keep):
            tensors[name] = tensor
            continue
        parts, values[name] = encode(layer, tensor.float().numpy())
        tensors |= {f"{layer}.{part}": torch.as_tensor(value).contiguous() for part, value in parts.items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target, values


def quantized(matrix, bits=4, block_size=32, scheme="symmetric"):
    """Return a weight whose scales are float16 numbers."""
    return qcore.quantize(matrix, bits=bits, block_size=block_size, scheme=scheme, scale_dtype="float16")


def integer_zeros(matrix, bits=4, block_size=32, seed=0):
    """Return a weight with random integer zero points, as AWQ and GPTQ have them."""
    rng = np.random.default_rng(seed)
    n, k = matrix.shape
    blocks = -(-k // block_size)
    middle = 1 << (bits - 1)
    zeros = rng.integers(middle - 2, middle + 3, (n, blocks))
    scales = (np.abs(rng.standard_normal((n, blocks))) * 0.01 + 0.005).astype(np.float16).astype(np.float32)
    codes = rng.integers(-middle, middle, (n, k)).astype(np.int8)
    offsets = scales * (middle - zeros)
    return qcore.QuantizedTensor.from_parts(codes, scales, offsets.astype(np.float32), bits=bits, block_size=block_size)


def awq_folder(source, target, version="gemm"):
    """Write a folder as AutoAWQ writes it."""

    def encode(layer, matrix):
        weight = integer_zeros(matrix)
        write = formats.to_awq if version == "gemm" else formats.to_awq_gemv
        qweight, scales, qzeros = write(weight)
        return {"qweight": qweight, "scales": scales, "qzeros": qzeros}, weight.dequantize()

    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": version, "zero_point": True}
    return rewritten(source, target, config, encode)


def gptq_folder(source, target, bits=4, version=1, act_order=False, **more):
    """Write a folder as AutoGPTQ and GPTQModel write it."""

    def encode(layer, matrix):
        weight = integer_zeros(matrix, bits)
        if act_order:
            order = np.random.default_rng(1).permutation(matrix.shape[1])
            weight = qcore.ReorderedTensor(weight, order)
        qweight, scales, qzeros, g_idx = formats.to_gptq(weight, version=version)
        return {"qweight": qweight, "scales": scales, "qzeros": qzeros, "g_idx": g_idx}, weight.dequantize()

    config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": act_order, "sym": False}
    config |= {"checkpoint_format": "gptq" if version == 1 else "gptq_v2"} | more
    return rewritten(source, target, {key: value for key, value in config.items() if value is not None}, encode)


def mixtral(**sizes):
    """Return a decoder with four experts, whose files have a tensor for each expert and projection."""
    torch.manual_seed(0)
    config = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 96,
        "initializer_range": 0.1,
    }
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**config | sizes)).eval()


def float_twin(source, target, values):
    """Write the float folder again, with other values for some of its tensors."""
    target.mkdir()
    (target / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    tensors |= {name: torch.as_tensor(value).contiguous() for name, value in values.items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def replaced(source, values):
    """Return the float model with the matrices that the packed weights stand for."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(torch.as_tensor(value))
    return model
