"""qcore.decoder on tensors of torch, against torch's functions and a model of transformers."""

import numpy as np
import pytest
import torch

import qcore
from qcore import decoder

F = torch.nn.functional


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_operators_are_those_of_torch(dtype):
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    x, weight = normal(3, 5, 96, dtype=dtype), normal(96, dtype=dtype, seed=1)
    y = decoder.rms_norm(x, weight, 1e-5)
    assert isinstance(y, torch.Tensor) and y.dtype == dtype
    torch.testing.assert_close(y, F.rms_norm(x, (96,), weight, 1e-5), rtol=tolerance, atol=tolerance)
    for name, function in (
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda t: F.gelu(t, approximate="tanh")),
        ("relu", F.relu),
    ):
        expected = function(x[..., :48].float()) * x[..., 48:].float()
        torch.testing.assert_close(decoder.gated_activation(x, name).float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_that_of_torch(dtype, cache_dtype):
    batch, tokens, heads, kv_heads, size = 2, 40, 6, 2, 32
    q, k, v = (normal(batch, tokens, n, size, dtype=dtype, seed=n) for n in (heads, kv_heads, kv_heads + 1))
    v = v[:, :, :kv_heads]
    cache = decoder.KeyValueCache.empty(batch, kv_heads, 64, size, cache_dtype, like=q)
    past = torch.zeros(batch, dtype=torch.int32)
    decoder.write_cache(k, v, past, cache)
    y = decoder.attention(q, cache, past, out=torch.empty_like(q))
    expected = F.scaled_dot_product_attention(
        *(t.float().transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True
    ).transpose(1, 2)
    tolerance = 2e-6 if (dtype, cache_dtype) == (torch.float32, "float32") else 3e-2
    torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance)


def test_a_tensor_that_requires_grad_is_refused():
    x = torch.ones(2, 8, requires_grad=True)
    with pytest.raises(qcore.QcoreValueError, match=r"^rms_norm: x requires grad"):
        decoder.rms_norm(x)
    with torch.no_grad():
        assert decoder.rms_norm(x).shape == (2, 8)


def stack_of(model, dtype, compute="float"):
    """Return a decoder of a model of transformers, whose products get the values of the quantized weights."""
    config, inner = model.config, model.model
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def quantized(*linears):
        weights = torch.cat([linear.weight.detach().float() for linear in linears])
        result = qcore.quantize(weights.numpy(), bits=8, block_size=16)
        values = torch.from_numpy(result.dequantize())
        for linear, part in zip(linears, values.split([linear.weight.shape[0] for linear in linears]), strict=True):
            linear.weight.data.copy_(part)
        return result

    def bias(*linears):
        return None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])

    layers = []
    for index, layer in enumerate(inner.layers):
        attention, mlp = layer.self_attn, layer.mlp
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        layers.append(
            decoder.Layer(
                quantized(*projections),
                quantized(attention.o_proj),
                quantized(mlp.gate_proj, mlp.up_proj),
                quantized(mlp.down_proj),
                input_norm=layer.input_layernorm.weight.detach(),
                mlp_norm=layer.post_attention_layernorm.weight.detach(),
                q_norm=attention.q_norm.weight.detach() if hasattr(attention, "q_norm") else None,
                k_norm=attention.k_norm.weight.detach() if hasattr(attention, "k_norm") else None,
                qkv_bias=bias(*projections),
                name=f"model.layers.{index}",
            )
        )
    cos, sin = inner.rotary_emb(torch.ones(1, 1), torch.arange(64)[None])
    return decoder.Decoder(
        layers,
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=size,
        intermediate_size=config.intermediate_size,
        dtype=dtype,
        compute=compute,
        eps=config.rms_norm_eps,
        round_normalized=True,
        rotary=[(cos[0].contiguous(), sin[0].contiguous())],
        final_norm=inner.norm.weight.detach(),
        head=quantized(model.lm_head),
    )


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_a_stack_is_the_model_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 61,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes, **({"head_dim": 16} if kind == "Qwen3" else {}))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.2 * normal(*parameter.shape, seed=len(name))
    stack = stack_of(model, torch.float32)
    ids = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids).logits
        caches = stack.caches(2, 20, like=expected)
        past = torch.zeros(2, dtype=torch.int32)
        positions = torch.arange(12, dtype=torch.int32).expand(2, 12)
        embeddings = model.model.embed_tokens(ids)
        together = stack.forward(embeddings[:, :8], positions[:, :8], past, caches, last=None)
        torch.testing.assert_close(together, expected[:, :8], rtol=1e-4, atol=1e-4)
        for t in range(8, 12):
            logits = stack.forward(embeddings[:, t : t + 1], positions[:, t : t + 1], past + t, caches)
            torch.testing.assert_close(logits[:, 0], expected[:, t], rtol=1e-4, atol=1e-4)


def test_bfloat16_stays_close_to_the_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    stack = stack_of(model, torch.bfloat16)
    ids = torch.randint(0, 61, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact = model(ids).logits
        embeddings = model.model.embed_tokens(ids).bfloat16()
        theirs = model.bfloat16()(ids).logits.float()
        positions = torch.arange(30, dtype=torch.int32)[None]
        caches = stack.caches(1, 30, like=exact)
        ours = stack.forward(embeddings, positions, torch.zeros(1, dtype=torch.int32), caches, last=None).float()
    assert ours.dtype == torch.float32 and np.isfinite(ours.numpy()).all()
    # No further from the float32 model than transformers' own bfloat16, but for chance.
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()
