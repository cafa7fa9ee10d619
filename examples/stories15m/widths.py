"""Measures `quantize_(target_bits=...)` on stories15M beside the same bits in every layer, by KL divergence.

    python examples/stories15m/widths.py FOLDER [--layers] [--method METHOD] [--plot PICTURE.png]

FOLDER is what llama2c.py wrote. All layers are quantized, the embedding included, which is also the head and has three
fifths of the weights; --layers leaves it. Sensitivities are measured on 8 texts that the float model samples, the
divergence on 12 others, both with int8 activations. The status is 1 if a target is no better than the uniform formats
beside it.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import torch
from methods import sample_texts

import qcore.torch
from qcore.language_model import evaluate, load_model

CALIBRATED, TESTED = 8, 12
HEAD = ("lm_head", "model.embed_tokens")
UNIFORM = {4.5: (("symmetric", 32), ("asymmetric", 64)), 5.0: (("symmetric", 16), ("asymmetric", 32))}


def row(model: Any, name: str, texts: list[list[int]], calibration: list[Any], **options: Any) -> tuple[Any, float]:
    """Quantize a copy of a model, print what was measured, and return the report and the KL divergence."""
    made = copy.deepcopy(model)
    report = qcore.torch.quantize_(made, scale_dtype="float16", calibration=calibration, progress=False, **options)
    found = evaluate(made, texts, against=model)
    assert found.comparison is not None
    divergence, same = found.comparison.kl_divergence, found.comparison.same_first_choice
    print(
        f"| {name} | {report.bits_per_weight:.3f} | {report.model_error:.3f} | {divergence:.4f} ± "
        f"{found.comparison.kl_standard_error:.4f} | {same:.1%} | {found.perplexity:.3f} |",
        flush=True,
    )
    return report, divergence


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", action="store_true", help="leave the embedding, which is also the head")
    parser.add_argument("--method", default="mse", choices=("rtn", "mse", "awq", "gptq"))
    parser.add_argument("--plot", type=Path, metavar="PICTURE.png", help="draw what was chosen at 4.5 bits")
    given = parser.parse_args()
    model = load_model(given.folder).model
    texts, others = sample_texts(model, 0, 24)[:TESTED], sample_texts(model, 1, 64)
    calibration = [{"input_ids": torch.tensor([text])} for text in others if len(text) > 100][:CALIBRATED]
    print("| weights | bits per weight | error of the logits | KL | same first choice | perplexity |")
    print("|---|---|---|---|---|---|")
    status = 0
    for target, formats in UNIFORM.items():
        common = {"method": given.method, "exclude": HEAD if given.layers else ()}
        options = {"scheme": "asymmetric", "target_bits": target, **common}
        report, best = row(model, f"target_bits = {target:g}, asymmetric", texts, calibration, **options)
        if given.plot is not None and target == 4.5:
            report.plot(given.plot)
        for scheme, block_size in formats:
            name = f"4 bits, {scheme}, g = {block_size}"
            options = {"bits": 4, "scheme": scheme, "block_size": block_size, **common}
            _, divergence = row(model, name, texts, calibration, **options)
            if best >= divergence:
                print(f"target_bits = {target:g}: expected a divergence below that of {name}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
