"""The plugin for vLLM in vLLM's own models: names and shards of whole checkpoints, and mixtures of experts."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

import vllm_setup as setup
from safetensors.torch import load_file
from vllm_setup import EXPERT, QUANTIZATION, SIZES, expected_sum, experts_of, llama, mixtral, random

import qcore
import qcore.torch
import qcore.vllm


@pytest.fixture(scope="module", autouse=True)
def _context(tmp_path_factory):
    with setup.in_vllm(tmp_path_factory.mktemp("group")):
        qcore.vllm.register()
        yield


@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_a_checkpoint_fills_a_model_of_vllm(tmp_path, suffix):
    tensors, values = llama(tmp_path, suffix=suffix)
    model, loaded = setup.load_model(tmp_path, tensors.items())
    layer = model.model.layers[1]
    assert "model.layers.1.self_attn.qkv_proj.codes" in loaded
    for module, names in (
        (layer.self_attn.qkv_proj, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        (layer.self_attn.o_proj, ("self_attn.o_proj",)),
        (layer.mlp.gate_up_proj, ("mlp.gate_proj", "mlp.up_proj")),
        (layer.mlp.down_proj, ("mlp.down_proj",)),
    ):
        expected = torch.cat([values[f"model.layers.1.{name}.weight"] for name in names])
        assert torch.equal(torch.from_numpy(module.qcore_linear.weight.dequantize()), expected)
    assert torch.equal(model.model.embed_tokens.weight[:100], values["model.embed_tokens.weight"])
    x = random(3, 64, seed=5)
    expected = x @ values["lm_head.weight"].T
    torch.testing.assert_close(model.compute_logits(x), expected, rtol=1e-4, atol=1e-4)


def test_a_float_checkpoint_is_quantized_with_the_options_of_hf_overrides(tmp_path):
    tensors, _ = llama(tmp_path, quantization=None)
    options = {"bits": 8, "block_size": 64, "scheme": "symmetric", "method": "rtn", "embeddings": False}
    model, _ = setup.load_model(
        tmp_path,
        tensors.items(),
        quantization="qcore",
        hf_overrides={"quantization_config_dict_json": json.dumps(options | {"layers": {"down_proj": {"bits": 4}}})},
    )
    mlp = model.model.layers[0].mlp
    whole = torch.cat([tensors[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    expected = qcore.quantize(whole, bits=8, block_size=64, method="rtn", scale_dtype="float16")
    assert mlp.gate_up_proj.qcore_linear.weight == expected
    assert mlp.down_proj.qcore_linear.weight.bits == 4


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_that_transformers_saved(tmp_path, tied):
    import transformers

    from qcore.transformers import QcoreConfig

    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied, architectures=["LlamaForCausalLM"])
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "float")
    options = QcoreConfig(bits=4, block_size=32, compute="float")
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "float", quantization_config=options)
    saved.save_pretrained(tmp_path / "packed")
    tensors = load_file(str(tmp_path / "packed" / "model.safetensors"))
    assert "model.embed_tokens.weight" not in tensors
    model, _ = setup.load_model(tmp_path / "packed", tensors.items())
    ours, theirs = model.model.layers[0].mlp, saved.model.layers[0].mlp
    assert ours.down_proj.qcore_linear.weight == theirs.down_proj.weight
    whole = np.concatenate([theirs.gate_proj.weight.codes(), theirs.up_proj.weight.codes()])
    assert np.array_equal(ours.gate_up_proj.qcore_linear.weight.codes(), whole)
    tokens = torch.tensor([0, 7, 99])
    assert torch.equal(model.model.embed_tokens(tokens), saved.model.embed_tokens(tokens))
    x = random(3, 64, seed=5)
    torch.testing.assert_close(model.compute_logits(x), saved.lm_head(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("online", [False, True])
def test_experts_of_a_model_of_vllm(tmp_path, online):
    tensors, values = mixtral(tmp_path, quantization=None if online else QUANTIZATION)
    options = {}
    if online:
        text = json.dumps(QUANTIZATION | {"bits": 8, "embeddings": False})
        options = {"quantization": "qcore", "hf_overrides": {"quantization_config_dict_json": text}}
    model, _ = setup.load_model(tmp_path, tensors.items(), **options)
    experts = experts_of(model)
    assert not list(experts.parameters())
    x = random(7, 64, seed=3)
    ids = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i))[:2] for i in range(7)])
    weights = torch.rand(7, 2, generator=torch.Generator().manual_seed(0))
    y = experts.quant_method.apply(experts, x, weights, ids.int())
    tolerance = 2e-2 if online else 1e-4
    torch.testing.assert_close(y, expected_sum(values, x, weights, ids), rtol=tolerance, atol=tolerance)

    experts._expert_map = torch.tensor([-1, 0, 1, -1], dtype=torch.int32)  # as with expert parallelism
    shifted = dict(values)
    for expert in (1, 2):
        for name in EXPERT:
            at = "model.layers.1.block_sparse_moe.experts"
            shifted[f"{at}.{expert}.{name}.weight"] = values[f"{at}.{expert - 1}.{name}.weight"]
    y = experts.quant_method.apply(experts, x, weights, ids.int())
    torch.testing.assert_close(y, expected_sum(shifted, x, weights, ids, only=(1, 2)), rtol=tolerance, atol=tolerance)


def moe_layer(rank, hidden=64, intermediate=128, activation="silu", **options):
    """Return the method and a layer with its parameters, for one rank of two."""
    from qcore.transformers.config import QcoreConfig
    from qcore.vllm.moe import QcoreMoeMethod

    moe = {"swiglu_limit": None, "has_bias": False, "hidden_dim_unpadded": hidden, "tp_size": 2, "tp_rank": rank}
    moe |= {"activation": SimpleNamespace(value=activation), "intermediate_size": intermediate} | options
    layer = torch.nn.Module()
    layer.local_num_experts, layer.expert_map, layer.apply_router_weight_on_input = 2, None, False
    layer._map_global_expert_id_to_local_expert_id = lambda expert: expert - 1
    method = QcoreMoeMethod(QcoreConfig(**QUANTIZATION).of_layer("experts"), SimpleNamespace(**moe), "a.experts")
    method.create_weights(layer, 2, hidden, intermediate // 2, torch.float32, weight_loader=None)
    return method, layer


@pytest.mark.parametrize("on_input", [False, True])
def test_ranks_of_experts_sum_to_the_whole(on_input):
    values, parts = {}, {}
    for expert in (0, 1):
        for name, shape in EXPERT.items():
            weight = qcore.quantize(
                random(*shape, seed=expert), bits=4, block_size=32, scheme="asymmetric", scale_dtype="float16"
            )
            values[f"model.layers.1.block_sparse_moe.experts.{expert}.{name}.weight"] = torch.from_numpy(
                weight.dequantize()
            )
            parts[expert, name] = {
                "codes": torch.from_numpy(weight.nibbles()),
                "scales": torch.from_numpy(weight.scales()),
                "offsets": torch.from_numpy(weight.offsets()),
            }
    x, ids = random(5, 64, seed=3), torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1]])
    weights = torch.rand(5, 2, generator=torch.Generator().manual_seed(0))
    if on_input:
        ids, weights = ids[:, :1], torch.ones(5, 1) * 0.5
    total = 0
    for rank in range(2):
        method, layer = moe_layer(rank)
        layer.apply_router_weight_on_input = on_input
        for (expert, name), tensors in parts.items():
            for part, tensor in tensors.items():
                parameter = getattr(layer, f"{'w2' if name == 'w2' else 'w13'}_{part}")
                assert parameter.weight_loader(parameter, tensor, "", name, expert + 1, return_success=True)
                assert not parameter.weight_loader(parameter, tensor, "", name, 0, return_success=True)
        method.process_weights_after_loading(layer)
        total = total + method.apply(layer, x, weights, ids)
    if on_input:
        expected = expected_sum(values, 0.5 * x, torch.ones(5, 1), ids, (0, 1))
    else:
        expected = expected_sum(values, x, weights, ids, (0, 1))
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "swigluoai"}, "has the activation 'swigluoai', expected one of silu, gelu"),
        ({"swiglu_limit": 7.0}, "with swiglu_limit = 7.0, expected"),
        ({"has_bias": True}, "experts with a bias"),
        ({"hidden_dim_unpadded": 60}, r"padded experts \(64 x 64 on a rank\), expected 60 x 64"),
        ({"intermediate": 96}, r"a\.experts\.w2 has 48 of 96 input columns"),
    ],
)
def test_experts_that_are_refused(options, message):
    with pytest.raises(qcore.QcoreValueError, match=message):
        moe_layer(0, **options)
