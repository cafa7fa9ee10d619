"""examples/stories15m/llama2c.py: the folder that it writes computes and encodes what llama2.c does, here in NumPy."""

import importlib.util
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import qcore.language_model as lm

FILE = Path(__file__).resolve().parents[4] / "examples" / "stories15m" / "llama2c.py"

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="needs a source tree")

SIZES = {"dim": 16, "hidden": 24, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 273, "positions": 32}
LETTERS = "thecaé "
PIECES = ["  ", " t", "he", " the", " c", "at", " cat", *LETTERS]


@pytest.fixture(scope="module")
def llama2c():
    spec = importlib.util.spec_from_file_location("llama2c", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama2c"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["llama2c"]


def tensors(shared):
    """Return random float32 tensors by llama2.c's names, in the order of the file."""
    rng = np.random.default_rng(0)
    dim, hidden, layers, vocab = (SIZES[name] for name in ("dim", "hidden", "layers", "vocab"))
    kv = dim * SIZES["kv_heads"] // SIZES["heads"]
    shapes = {
        "embedding": (vocab, dim),
        "rms_att": (layers, dim),
        "wq": (layers, dim, dim),
        "wk": (layers, kv, dim),
        "wv": (layers, kv, dim),
        "wo": (layers, dim, dim),
        "rms_ffn": (layers, dim),
        "w1": (layers, hidden, dim),
        "w2": (layers, dim, hidden),
        "w3": (layers, hidden, dim),
        "rms_final": (dim,),
        "rotary": (2, SIZES["positions"], dim // SIZES["heads"] // 2),
    }
    if not shared:
        shapes["head"] = (vocab, dim)
    return {name: rng.standard_normal(shape).astype(np.float32) * 0.5 for name, shape in shapes.items()}


def model_file(weights, shared):
    order = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "positions")
    sizes = [SIZES[name] for name in order]
    sizes[5] *= 1 if shared else -1
    return struct.pack("<7i", *sizes) + b"".join(each.tobytes() for each in weights.values())


def tokens():
    """Return (bytes, score) of each token: three special ones, 256 bytes, and pieces; earlier pieces score higher."""
    special = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    found = special + [(bytes([byte]), 0.0) for byte in range(256)]
    found += [(piece.encode(), -float(rank)) for rank, piece in enumerate(PIECES)]
    assert len(found) == SIZES["vocab"]
    return found


def tokenizer_file(vocabulary):
    body = b"".join(struct.pack("<fi", score, len(text)) + text for text, score in vocabulary)
    return struct.pack("<i", max(len(text) for text, _ in vocabulary)) + body


def logits(weights, ids):
    """Compute llama2.c's forward pass for a whole sequence: rotary embedding rotates neighbors (2i, 2i + 1)."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    heads, kv_heads = SIZES["heads"], SIZES["kv_heads"]
    size = SIZES["dim"] // heads
    steps = np.arange(len(ids))

    def norm(x, weight):
        return weight * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)

    def turned(x):
        angles = steps[:, None] / 10000.0 ** (np.arange(0, size, 2) / size)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        result = np.empty_like(x)
        result[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        result[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return result

    x = w["embedding"][ids]
    for layer in range(SIZES["layers"]):
        h = norm(x, w["rms_att"][layer])
        q = turned((h @ w["wq"][layer].T).reshape(len(ids), heads, size))
        k = turned((h @ w["wk"][layer].T).reshape(len(ids), kv_heads, size))
        v = (h @ w["wv"][layer].T).reshape(len(ids), kv_heads, size)
        mixed = np.empty_like(q)
        for head in range(heads):
            other = head // (heads // kv_heads)
            for t in steps:
                scores = k[: t + 1, other] @ q[t, head] / np.sqrt(size)
                share = np.exp(scores - scores.max())
                mixed[t, head] = share / share.sum() @ v[: t + 1, other]
        x = x + mixed.reshape(len(ids), -1) @ w["wo"][layer].T
        h = norm(x, w["rms_ffn"][layer])
        gate = h @ w["w1"][layer].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["w3"][layer].T)) @ w["w2"][layer].T
    return norm(x, w["rms_final"]) @ w.get("head", w["embedding"]).T


def encoded(text, vocabulary):
    """Encode a text like llama2.c: characters or their bytes, and the best pair merged until there is none."""
    numbers = {piece: number for number, (piece, _) in enumerate(vocabulary) if number >= 259}
    ids = []
    for letter in " " + text:
        found = numbers.get(letter.encode())
        ids += [found] if found is not None else [byte + 3 for byte in letter.encode()]
    while True:
        pairs = [
            (vocabulary[number][1], -i, number)
            for i in range(len(ids) - 1)
            if (number := numbers.get(vocabulary[ids[i]][0] + vocabulary[ids[i + 1]][0])) is not None
        ]
        if not pairs:
            return [1, *ids]
        _, place, number = max(pairs)
        ids[-place : -place + 2] = [number]


@pytest.mark.parametrize("shared", [True, False])
def test_the_folder_computes_what_llama2c_does(llama2c, tmp_path, shared):
    weights = tensors(shared)
    llama2c.write_folder(model_file(weights, shared), tokenizer_file(tokens()), tmp_path / "model")
    model = lm.load_model(tmp_path / "model").model
    ids = np.random.default_rng(1).integers(0, SIZES["vocab"], 20)
    with torch.no_grad():
        got = model(torch.from_numpy(ids)[None]).logits[0].double().numpy()
    assert np.abs(got - logits(weights, ids)).max() < 1e-4
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == shared


def test_special_tokens_and_text_come_back(llama2c, tmp_path):
    weights = tensors(True)
    llama2c.write_folder(model_file(weights, True), tokenizer_file(tokens()), tmp_path / "model")
    tokenizer = lm.load_tokenizer(tmp_path / "model")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    for text in ("the cat", "a 漢 é\nthe", "thecat  the"):
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == 1 and tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model, tokenizer: (model[:20], tokenizer), "20 bytes, expected a header of 28"),
        (lambda model, tokenizer: (model[:-4], tokenizer), "by its header"),
        (lambda model, tokenizer: (model + b"1234", tokenizer), "by its header"),
        (lambda model, tokenizer: (struct.pack("<i", -3) + model[4:], tokenizer), "expected positive sizes"),
        (lambda model, tokenizer: (model, tokenizer[:-200]), "expected 273"),
        (lambda model, tokenizer: (model, tokenizer + b"1"), "a tokenizer has"),
    ],
)
def test_damaged_files_are_refused(llama2c, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        llama2c.write_folder(*change(model_file(tensors(True), True), tokenizer_file(tokens())), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_text_is_encoded_as_llama2c_does(llama2c):
    vocabulary = tokens()
    made = llama2c.make_tokenizer(vocabulary)
    for text in ("the cat", "tthe cat at", "ca the  tthe"):
        assert made.encode(text).ids == encoded(text, vocabulary)
