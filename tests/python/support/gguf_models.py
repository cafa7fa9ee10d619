"""GGUF files of tiny random models, as llama.cpp writes them."""

import gguf
import numpy as np

from qcore.formats import gguf_blocks

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
END = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": ()}


def random_raw(kind, n, k, seed):
    """Return random bytes of a type whose fp16 numbers are small."""
    rng = np.random.default_rng(seed)
    block = gguf_blocks.TYPES.get(kind)
    octets, elements = (block.octets, block.elements) if block else SIZES[kind]
    raw = rng.integers(0, 256, (n, k // elements, octets)).astype(np.uint8)
    if kind == "MXFP4":
        raw[..., 0] = rng.integers(114, 120, raw.shape[:2])
    elif kind == "NVFP4":
        raw[..., :4] = rng.integers(0, 24, (*raw.shape[:2], 4))
    places = END.get(kind, (0, 2) if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,))
    small = 0.001 if kind.endswith("K") else 0.01
    for place in places:
        halves = (np.abs(rng.standard_normal((*raw.shape[:2], 1))) * small).astype("<f2")
        raw[..., place : place + 2] = halves.view(np.uint8)
    return raw.reshape(n, -1)


SIZES = {"IQ3_S": (110, 256)}


def permuted(values, heads):
    """Return llama.cpp's order of the rows of q and k."""
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
    """Write a file of one layer and return the float values by the model's names."""
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
