"""The plugin for vLLM in vLLM's own layers: loading, merged rows, tensor-parallel shards, results."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

import vllm_setup as setup

import qcore
import qcore.torch
import qcore.vllm
from qcore.transformers.config import QcoreConfig

DTYPES = {"float16": torch.float16, "float32": torch.float32}
OPTIONS = {"block_size": 32, "compute": "float", "scale_dtype": "float16", "method": "rtn"}


@pytest.fixture(scope="module", autouse=True)
def _context(tmp_path_factory):
    with setup.in_vllm(tmp_path_factory.mktemp("group")):
        qcore.vllm.register()
        qcore.vllm.register()
        yield


def config_of(online=False, **options):
    from vllm.model_executor.layers.quantization import get_quantization_config

    cls = get_quantization_config("qcore")
    text = {"quant_method": "qcore", "bits": 4, "scheme": "asymmetric"} | OPTIONS | options
    config = cls.from_config_dict_json(json.dumps(text)) if online else cls.from_config(text)
    config.packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    return config


def float_weight(n, k, seed=0):
    return np.random.default_rng([seed, n, k]).standard_normal((n, k), dtype=np.float32)


def packed(n, k, seed=0, bits=4, scheme="asymmetric", block_size=32, scale_dtype="float16"):
    return qcore.quantize(
        float_weight(n, k, seed), bits=bits, block_size=block_size, scheme=scheme, method="rtn", scale_dtype=scale_dtype
    )


def tensors_of(weight, scale_dtype="float16"):
    """Return the tensors by which a checkpoint represents a weight."""
    found = {
        "codes": torch.from_numpy(weight.nibbles() if weight.bits == 4 else weight.codes()),
        "scales": torch.from_numpy(weight.scales()).to(DTYPES[scale_dtype]),
    }
    if weight.scheme == "asymmetric":
        found["offsets"] = torch.from_numpy(weight.offsets()).to(DTYPES[scale_dtype])
    return found


def load(layer, weight, *shard):
    for part, tensor in tensors_of(weight).items():
        parameter = getattr(layer, part)
        parameter.weight_loader(parameter, tensor, *shard)


def finish(layer):
    layer.quant_method.process_weights_after_loading(layer)
    layer.quant_method.process_weights_after_loading(layer)
    assert [name for name, _ in layer.named_parameters()] in ([], ["bias"])
    return layer.qcore_linear.weight


def rows(weight, *ranges):
    """Return the weight of some of the rows."""
    chosen = np.concatenate([np.arange(*each) for each in ranges])
    offsets = None if weight.scheme == "symmetric" else weight.offsets()[chosen]
    return qcore.QuantizedTensor.from_parts(
        weight.codes()[chosen], weight.scales()[chosen], offsets, bits=weight.bits, block_size=weight.block_size
    )


def stacked(*weights):
    offsets = None if weights[0].scheme == "symmetric" else np.concatenate([w.offsets() for w in weights])
    return qcore.QuantizedTensor.from_parts(
        np.concatenate([w.codes() for w in weights]),
        np.concatenate([w.scales() for w in weights]),
        offsets,
        bits=weights[0].bits,
        block_size=weights[0].block_size,
    )


def test_the_method_is_registered_and_reads_its_config():
    config = config_of(bits=8, layers={"*.down_proj": {"bits": 4}})
    assert config.get_name() == "qcore" and not config.online
    assert config.options.of_layer("model.layers.0.mlp.down_proj").bits == 4
    assert config.options.of_layer("model.layers.0.mlp.up_proj").bits == 8
    assert type(config)().online


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 2)])
def test_merged_qkv_rows_are_those_of_the_checkpoint(bits, scheme, rank, ranks):
    q, k, v = (packed(n, 64, seed, bits, scheme) for seed, n in enumerate((64, 32, 32)))
    with setup.on_rank(rank, ranks):
        layer = setup.linear_layers.QKVParallelLinear(
            64, 16, 4, 2, bias=True, quant_config=config_of(bits=bits, scheme=scheme), prefix="a.qkv_proj"
        )
        for weight, shard in ((k, "k"), (q, "q"), (v, "v")):
            load(layer, weight, shard)
    layer.bias.data.copy_(torch.arange(len(layer.bias)))
    mine = [rows(w, (rank * len(w.codes()) // ranks, (rank + 1) * len(w.codes()) // ranks)) for w in (q, k, v)]
    assert finish(layer) == stacked(*mine)

    x = torch.randn(5, 64)
    y, _ = layer(x)
    expected = x @ torch.from_numpy(stacked(*mine).dequantize()).T + layer.bias
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_merged_gate_and_up_also_where_the_checkpoint_has_them_merged(fused):
    gate, up = packed(48, 64, 1), packed(48, 64, 2)
    with setup.on_rank(1, 2):
        layer = setup.linear_layers.MergedColumnParallelLinear(
            64, [48, 48], bias=False, quant_config=config_of(), prefix="a.gate_up_proj"
        )
        if fused:
            load(layer, stacked(gate, up))
        else:
            load(layer, gate, 0)
            load(layer, up, 1)
    assert finish(layer) == stacked(rows(gate, (24, 48)), rows(up, (24, 48)))


@pytest.mark.parametrize("block_size", [32, 64, 4096])
def test_ranks_of_a_row_parallel_layer_sum_to_the_whole(block_size):
    weight = packed(24, 128, 3, block_size=block_size)
    x = torch.randn(3, 128)
    total = 0
    for rank in range(2):
        with setup.on_rank(rank, 2):
            layer = setup.linear_layers.RowParallelLinear(
                128,
                24,
                bias=False,
                reduce_results=False,
                quant_config=config_of(block_size=block_size),
                prefix="a.down_proj",
            )
            load(layer, weight)
        assert finish(layer).shape == (24, 64)
        total = total + layer(x[:, 64 * rank : 64 * rank + 64])[0]
    torch.testing.assert_close(total, x @ torch.from_numpy(weight.dequantize()).T, rtol=1e-4, atol=1e-4)


def test_a_rank_needs_whole_blocks_of_columns():
    with setup.on_rank(0, 4), pytest.raises(qcore.QcoreValueError, match=r"down_proj has 48 of 192 .*block_size = 32"):
        setup.linear_layers.RowParallelLinear(192, 24, bias=False, quant_config=config_of(), prefix="a.down_proj")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_replicated_layer_keeps_the_dtype_of_x(dtype):
    weight = packed(24, 70, 4)
    layer = setup.linear_layers.ReplicatedLinear(70, 24, bias=False, quant_config=config_of(), prefix="a.fc")
    load(layer, weight)
    assert finish(layer) == weight
    x = torch.randn(2, 3, 70).to(dtype)
    y, _ = layer(x)
    assert y.dtype == dtype and torch.equal(y, qcore.torch.Linear(weight, compute="float")(x))
    torch.testing.assert_close(layer.quant_method.dequantize_weight(layer), torch.from_numpy(weight.dequantize()))


def test_layers_stay_in_floating_point_by_config_and_by_checkpoint():
    config = config_of(modules_to_not_convert=["lm_head", "q_proj", "k_proj", "v_proj"])
    layer = setup.linear_layers.QKVParallelLinear(64, 16, 4, 2, quant_config=config, prefix="a.qkv_proj")
    assert layer.weight.shape == (128, 64)
    with pytest.raises(qcore.QcoreValueError, match=r"a\.v_proj has 4 bits.*expected a float weight as a\.q_proj"):
        config = config_of(modules_to_not_convert=["q_proj", "k_proj"])
        setup.linear_layers.QKVParallelLinear(64, 16, 4, 2, quant_config=config, prefix="a.qkv_proj")
    config = config_of()
    config.names = {"a.up": 8}
    layer = setup.linear_layers.ReplicatedLinear(64, 8, quant_config=config, prefix="a.gate")
    assert layer.weight.shape == (8, 64)
    layer = setup.linear_layers.ReplicatedLinear(64, 8, bias=False, quant_config=config, prefix="a.up")
    assert layer.codes.shape == (8, 32)


def test_layers_with_other_options_cannot_be_merged():
    config = config_of(layers={"*.up_proj": {"bits": 8}})
    with pytest.raises(qcore.QcoreValueError, match=r"b\.up_proj has 8 bits.*expected 4 bits.*vLLM merges"):
        setup.linear_layers.MergedColumnParallelLinear(64, [48, 48], quant_config=config, prefix="b.gate_up_proj")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": torch.zeros(24, 32, dtype=torch.int8)}, r"a\.fc\.codes in the checkpoint is torch.int8, expected"),
        ({"codes": torch.zeros(24, 64, dtype=torch.uint8)}, r"codes in the checkpoint has shape \[24, 64\].*\[N, 32\]"),
        ({"scales": torch.full((24, 2), 1e-9)}, "scales in the checkpoint is torch.float32 with values"),
        ({"offsets": None}, r"a\.fc\.offsets was not loaded in full"),
    ],
)
def test_a_checkpoint_that_its_config_does_not_describe(change, message):
    layer = setup.linear_layers.ReplicatedLinear(64, 24, bias=False, quant_config=config_of(), prefix="a.fc")
    with pytest.raises(qcore.QcoreValueError, match=message):
        for part, tensor in (tensors_of(packed(24, 64)) | change).items():
            if tensor is not None:
                getattr(layer, part).weight_loader(getattr(layer, part), tensor)
        layer.quant_method.process_weights_after_loading(layer)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_head_has_padded_rows_of_zeros(rank):
    weight = packed(100, 64, 5)
    with setup.on_rank(rank, 2):
        head = setup.vocabulary_layers.ParallelLMHead(100, 64, quant_config=config_of(), prefix="lm_head")
        load(head, weight)
    assert finish(head).shape == (64, 64)
    y = head.quant_method.apply(head, torch.ones(1, 64))
    whole = torch.from_numpy(weight.dequantize()).sum(-1)[64 * rank : 64 * rank + 64]
    torch.testing.assert_close(y[0, : len(whole)], whole, rtol=1e-4, atol=1e-4)
    assert not y[0, len(whole) :].any()


def test_a_tied_head_uses_the_rows_of_the_embedding():
    weight, config = packed(100, 64, 6), config_of()
    config.tied = True
    embedding = setup.vocabulary_layers.VocabParallelEmbedding(100, 64, quant_config=config, prefix="embed_tokens")
    head = setup.vocabulary_layers.ParallelLMHead(100, 64, quant_config=config, prefix="lm_head")
    assert head.tie_weights(embedding) is head
    load(embedding, weight)
    finish(embedding)
    head.quant_method.process_weights_after_loading(head)
    assert not list(head.parameters()) and not list(head.buffers())
    dense = torch.from_numpy(weight.dequantize())
    assert torch.equal(embedding(torch.tensor([3, 99])), dense[[3, 99]])
    # One copy for both.
    (table,), (rows,) = embedding.qcore_linear.buffers(), embedding.qcore_embedding.buffers()
    assert table.data_ptr() == rows.data_ptr()
    x = torch.randn(2, 64)
    torch.testing.assert_close(head.quant_method.apply(head, x)[:, :100], x @ dense.T, rtol=1e-4, atol=1e-4)


def test_a_tied_head_of_a_float_embedding_is_float():
    config = config_of(embeddings=False)
    config.tied = True
    embedding = setup.vocabulary_layers.VocabParallelEmbedding(100, 64, quant_config=config, prefix="embed_tokens")
    head = setup.vocabulary_layers.ParallelLMHead(100, 64, quant_config=config, prefix="lm_head")
    assert head.tie_weights(embedding).weight is embedding.weight
    assert [name for name, _ in head.named_parameters()] == ["weight"]


@pytest.mark.parametrize("rank", [0, 1])
def test_float_weights_are_quantized_when_loaded(rank):
    gate, up = torch.from_numpy(float_weight(48, 64, 7)), torch.from_numpy(float_weight(48, 64, 8))
    config = config_of(online=True, bits=8, scheme="symmetric", modules_to_not_convert=["lm_head"])
    with setup.on_rank(rank, 2):
        layer = setup.linear_layers.MergedColumnParallelLinear(
            64, [48, 48], bias=False, quant_config=config, prefix="a.gate_up_proj"
        )
        layer.weight.weight_loader(layer.weight, gate, 0)
        layer.weight.weight_loader(layer.weight, up, 1)
    mine = torch.cat([each[24 * rank : 24 * rank + 24] for each in (gate, up)])
    assert finish(layer) == qcore.quantize(mine, bits=8, block_size=32, method="rtn", scale_dtype="float16")
    head = setup.vocabulary_layers.ParallelLMHead(100, 64, quant_config=config, prefix="lm_head")
    assert head.weight.dtype == torch.float32


def test_compiled_layers_are_one_graph():
    layer = setup.linear_layers.ReplicatedLinear(64, 24, quant_config=config_of(), prefix="a.fc", return_bias=False)
    load(layer, packed(24, 64, 9))
    layer.bias.data.zero_()
    finish(layer)
    x = torch.randn(3, 64)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))


def test_options_for_float_checkpoints_are_checked():
    from vllm.model_executor.layers.quantization import get_quantization_config

    cls = get_quantization_config("qcore")
    with pytest.raises(qcore.QcoreValueError, match="bits is 3"):
        cls.from_config_dict_json('{"bits": 3}')
    with pytest.raises(qcore.QcoreValueError, match=r"layers\['x'\]: encoding is 'q4_k', expected bits 4 or 8"):
        cls.from_config_dict_json('{"layers": {"x": {"encoding": "q4_k"}}}')
    with pytest.raises(qcore.QcoreValueError, match="is no JSON"):
        cls.from_config_dict_json("bits")
    with pytest.raises(qcore.QcoreValueError, match="expected an object"):
        cls.from_config_dict_json("[4]")
    assert QcoreConfig().to_dict() == cls().options.to_dict()


def test_vllm_finds_the_plugin_by_its_entry_point():
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="qcore")
    assert found.load() is qcore.vllm.register
