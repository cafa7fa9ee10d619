"""GGUF files in transformers: weights unchanged in all types, rows permuted back, names mapped."""

import os

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")
gguf = pytest.importorskip("gguf")

from model_folders import kl, llama, logits  # noqa: E402

import qcore  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.formats import gguf_blocks  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402

FLOAT = qt.QcoreConfig(compute="float")
WIDTH, INNER, HEADS, GROUPS, TOKENS = 256, 512, 4, 2, 96
NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
END = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}


def random_raw(kind, n, k, seed):
    """Random bytes of a type whose fp16 numbers are small."""
    rng = np.random.default_rng(seed)
    block = gguf_blocks.TYPES.get(kind)
    octets, elements = (block.octets, block.elements) if block else SIZES[kind]
    raw = rng.integers(0, 256, (n, k // elements, octets)).astype(np.uint8)
    places = END.get(kind, (0, 2) if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,))
    small = 0.001 if kind.endswith("K") else 0.01
    for place in places:
        halves = (np.abs(rng.standard_normal((*raw.shape[:2], 1))) * small).astype("<f2")
        raw[..., place : place + 2] = halves.view(np.uint8)
    return raw.reshape(n, -1)


SIZES = {"IQ4_NL": (18, 32)}


def permuted(values, heads):
    """llama.cpp's order of the rows of q and k."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def sizes(tie=False):
    return {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "vocab_size": TOKENS,
        "attention_bias": False,
        "tie_word_embeddings": tie,
    }


def write(path, kinds, tie=False, architecture="llama"):
    """A file of one layer; returns the float values by the model's names."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{number}" for number in range(TOKENS)])
    kv = WIDTH // HEADS * GROUPS
    shapes = {
        "token_embd": (TOKENS, WIDTH),
        "output": (TOKENS, WIDTH),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (kv, WIDTH),
        "blk.0.attn_v": (kv, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_gate": (INNER, WIDTH),
        "blk.0.ffn_up": (INNER, WIDTH),
        "blk.0.ffn_down": (WIDTH, INNER),
    }
    if tie:
        del shapes["output"]
    values = {}
    for number, (name, (n, k)) in enumerate(shapes.items()):
        last = name.rpartition(".")[2]
        kind = kinds.get(last, kinds["all"])
        raw = random_raw(kind, n, k, number)
        stored = raw
        target = f"model.layers.0.{NAMES[last]}" if name.startswith("blk") else NAMES[last]
        if architecture == "llama" and last in ("attn_q", "attn_k"):
            stored = permuted(raw, HEADS if last == "attn_q" else GROUPS)
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(stored), raw_dtype=gguf.GGMLQuantizationType[kind])
        values[f"{target}.weight"] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    rng = np.random.default_rng(99)
    for name, target in (
        ("output_norm", "model.norm"),
        ("blk.0.attn_norm", "model.layers.0.input_layernorm"),
        ("blk.0.ffn_norm", "model.layers.0.post_attention_layernorm"),
    ):
        norm = (1 + 0.1 * rng.standard_normal(WIDTH)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", norm)
        values[f"{target}.weight"] = norm
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def opened(path, config=FLOAT, **options):
    options |= {} if config is None else {"quantization_config": config}
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **options)


def expected_logits(values, tie=False):
    model = llama(**sizes(tie))
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(torch.from_numpy(np.array(value)))
    return logits(model)


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
def test_every_type_is_exact(tmp_path, kind):
    values = write(tmp_path / "m.gguf", {"all": kind})
    model = opened(tmp_path / "m.gguf")
    found = dict(packed_modules(model))
    assert len(found) == 9
    for name, module in found.items():
        assert np.array_equal(module.weight.dequantize(), values[f"{name}.weight"]), name
    assert kl(expected_logits(values), logits(model)) < 1e-6


def test_other_types_become_float_with_a_note(tmp_path, caplog):
    kinds = {"all": "Q4_0", "ffn_up": "IQ4_NL"}
    values = write(tmp_path / "m.gguf", kinds)
    transformers.utils.logging.enable_propagation()
    try:
        model = opened(tmp_path / "m.gguf")
    finally:
        transformers.utils.logging.disable_propagation()
    assert "1 tensors of m.gguf become torch.float32" in caplog.text
    assert "blk.0.ffn_up.weight (IQ4_NL)" in caplog.text
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert kl(expected_logits(values), logits(model)) < 1e-6


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K"])
def test_tied_heads_share_the_embedding(tmp_path, kind):
    values = write(tmp_path / "m.gguf", {"all": "Q4_K", "token_embd": kind}, tie=True)
    model = opened(tmp_path / "m.gguf")
    head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
    assert np.shares_memory(head.storage(), embedding.storage())
    assert kl(expected_logits(values, tie=True), logits(model)) < 1e-6
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))


def test_transformers_own_values(tmp_path):
    """Without qcore, transformers dequantizes the same file to the same values."""
    write(tmp_path / "m.gguf", {"all": "Q4_K", "ffn_down": "Q6_K"})
    own = opened(tmp_path / "m.gguf", None, dtype=torch.float32)
    model = opened(tmp_path / "m.gguf")
    for name, module in packed_modules(model):
        assert np.array_equal(module.weight.dequantize(), own.get_parameter(f"{name}.weight").detach().numpy())
    assert type(own.model.layers[0].mlp.up_proj) is torch.nn.Linear


def test_enable(tmp_path):
    values = write(tmp_path / "m.gguf", {"all": "Q4_0"})
    qt.enable("gguf", config=FLOAT)
    try:
        model = opened(tmp_path / "m.gguf", None)
    finally:
        qt.disable()
    assert len(dict(packed_modules(model))) == 9
    assert kl(expected_logits(values), logits(model)) < 1e-6


def test_bfloat16_hosts(tmp_path):
    write(tmp_path / "m.gguf", {"all": "Q4_0"})
    model = opened(tmp_path / "m.gguf", dtype=torch.bfloat16)
    assert logits(model).dtype == torch.bfloat16


def test_broken_files(tmp_path):
    write(tmp_path / "m.gguf", {"all": "Q4_0"})
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:-64])
    with pytest.raises((qcore.QcoreValueError, ValueError)):
        opened(tmp_path / "m.gguf")
