"""Measures what outliers in single channels cost integer activations: plain, smooth and rotated layers.

    python -m benchmarks.outliers [--model FILE.gguf]

Without --model: a layer of random weights whose input has 1% of the channels 30 times larger; prints the table of
docs/methods.md. With it: a language model, quantized by qcore.torch.quantize_ with and without ``smooth`` and
``rotation``, and the relative L2 error and the KL divergence of its logits on other text, with activations of 8 bits
and, simulated, of 4. It needs torch and transformers.
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import qcore

N, K, ROWS, FACTOR = 256, 1024, 300, 30
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "`smooth=0.5`": {"smooth": 0.5},
    "`smooth=True`": {"smooth": True},
    '`rotation="hadamard_online"`': {"rotation": "hadamard_online"},
    '`rotation="hadamard"`': {"rotation": "hadamard"},
    "the same, down projections not rotated": {
        "rotation": "hadamard",
        "layers": {"*.down_proj": {"rotation": None}},
    },
}
TOKENS = 128  # of a sequence; two for the calibration, four for the error


def relative(y: Any, exact: Any) -> float:
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


def per_token(layer: Any, x: Any) -> Any:
    """Compute a linear layer with one scale per row of x, which modules of qcore.torch don't have."""
    return qcore.linear(x, layer.weight, layer.bias, compute="int8_token")


def in_four_bits(layer: Any, x: Any, block: int | None = None) -> Any:
    """Compute a linear layer with x rounded to codes of 4 bits, -8 to 7, with a scale per row, or per block of it."""
    blocks = x.reshape(-1, x.shape[-1] if block is None else block)
    scales = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 7
    codes = (blocks / scales).round().clamp(-8, 7)
    return qcore.linear((codes * scales).reshape(x.shape), layer.weight, layer.bias, compute="float")


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "`int8_token`": per_token,
    "4 bits per block of 64": functools.partial(in_four_bits, block=64),
    "4 bits per row": in_four_bits,
}


def layers() -> None:
    """Print the error of each variant of a layer, by bits, block size and compute mode."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((N, K), dtype=np.float32)
    quiet = rng.standard_normal((2 * ROWS, K), dtype=np.float32)
    x = quiet.copy()
    x[:, rng.choice(K, K // 100, replace=False)] *= FACTOR
    samples, test = x[:ROWS], x[ROWS:]
    exact, exact_quiet = test.astype(float) @ w.T.astype(float), quiet[ROWS:].astype(float) @ w.T.astype(float)
    print(
        "| bits | g | compute | plain, no outliers | plain | smooth, alpha 0.5 | smooth, searched (alpha) | rotated |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for bits in (4, 8):
        for block in (32, 128, K):
            for compute in ("int8", "int8_token"):
                options: dict[str, Any] = {"bits": bits, "block_size": block, "method": "mse", "scale_dtype": "float32"}
                plain, rotated = qcore.quantize(w, **options), qcore.quantize_rotated(w, **options)
                row = [relative(qcore.linear(quiet[ROWS:], plain, compute=compute), exact_quiet)]
                row.append(relative(qcore.linear(test, plain, compute=compute), exact))
                cells = [f"{each:.4f}" for each in row]
                for alpha in (0.5, None):
                    found = qcore.smooth_scales([w], samples, alpha=alpha, compute=compute, **options)
                    error = relative(qcore.linear(test / found.scales, found.weights[0], compute=compute), exact)
                    chosen = "none" if found.exponent is None else f"{found.exponent:g}"
                    cells.append(f"{error:.4f}" + (f" ({chosen})" if alpha is None else ""))
                cells.append(f"{relative(qcore.linear(test, rotated, compute=compute), exact):.4f}")
                name = "K" if block == K else str(block)
                print(f"| {bits} | {name} | `{compute}` | {' | '.join(cells)} |", flush=True)


def model(file: Path, text: Path) -> None:
    """Print error and KL divergence of a language model's logits for each variant."""
    import torch
    from transformers import AutoModelForCausalLM

    import qcore.torch
    from qcore.language_model import load_tokenizer

    tokens = torch.tensor(load_tokenizer(file)(text.read_text())["input_ids"][: 6 * TOKENS]).view(6, 1, TOKENS)
    calibration, test = list(tokens[:2]), list(tokens[2:])
    exact = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()

    def logits(of: Any) -> Any:
        with torch.no_grad():
            return torch.cat([of(x).logits for x in test])

    expected = logits(exact)
    likely = expected.log_softmax(-1)

    def cell(of: Any) -> str:
        got = logits(of)
        divergence = (likely.exp() * (likely - got.log_softmax(-1))).sum(-1).mean()
        return f"{relative(got.numpy(), expected.numpy()):.4f} / {float(divergence):.5f}"

    print("| bits | g | options | changed | online | " + " | ".join(["`int8`", *ACTIVATIONS]) + " |")
    print("|---|---|---|---|---|---|---|---|---|")
    for bits, block in ((8, 64), (8, 1 << 20)):
        for name, options in VARIANTS.items():
            made = copy.deepcopy(exact)
            report = qcore.torch.quantize_(
                made,
                bits=bits,
                block_size=block,
                method="mse",
                scale_dtype="float32",
                calibration=calibration,
                exclude=("lm_head",),
                progress=False,
                **options,
            )
            changed = sum(layer.note.startswith(("smooth ", "rotat")) for layer in report.layers)
            online = sum(isinstance(module, qcore.torch.RotatedLinear) for module in made.modules())
            cells = [cell(made)]
            for run in ACTIVATIONS.values():
                for module in made.modules():
                    if isinstance(module, qcore.torch.Linear):
                        module.forward = functools.partial(run, module)  # type: ignore[method-assign]
                cells.append(cell(made))
            g = "K" if block > K else block
            print(f"| {bits} | {g} | {name} | {changed} | {online} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="GGUF file of a language model")
    parser.add_argument("--text", type=Path, default=Path(__file__).parent.parent / "README.md")
    given = parser.parse_args()
    if given.model is None:
        layers()
    else:
        model(given.model, given.text)


if __name__ == "__main__":
    main()
