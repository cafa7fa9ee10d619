"""Measures what 4 bits cost stories15M: qcore's methods beside llama.cpp's Q4_0 and Q4_1, by KL divergence.

    python examples/stories15m/compare.py FOLDER [--table TABLE] [--only WEIGHTS] [--write PAGE.md]

FOLDER is what llama2c.py wrote. The float model samples 24 texts, which are the test, and 64 others, whose activations
"awq" and "gptq" get. Weights are rounded and dequantized, so that all methods run in torch's float32; the last table
has qcore's kernels instead. The status is 1 if symmetric weights by "mse", which take Q4_0's bytes, are no better than
Q4_0.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import torch
from methods import Method, all_methods, layer_inputs, linear_layers, sample_texts

import qcore.torch
from qcore.language_model import Evaluation, evaluate, load_model, load_tokenizer

TESTED, CALIBRATED = 24, 64
STORY = Path(__file__).with_name("story.txt")
COMPUTE = ("float", "int8")
WITH_KERNELS = ("symmetric, g = 32, mse", "asymmetric, g = 32, rtn", "asymmetric, g = 32, mse")
TABLES = ("layers", "embedding", "kernels")
OURS, BAR = "symmetric, g = 32, mse", "llama.cpp Q4_0"  # of the same size


def rounded(model: Any, method: Method, samples: dict[str, Any], head: bool) -> Any:
    """Return a copy of a model with dequantized weights; the head shares its weight with the embedding."""
    made = copy.deepcopy(model)
    for name, layer in linear_layers(made, head).items():
        layer.weight.data = torch.from_numpy(method.rounded(layer.weight.detach().numpy(), samples[name]).copy())
    return made


def packed(model: Any, method: Method, samples: dict[str, Any], compute: str) -> Any:
    """Return a copy of a model whose layers, without the head, run on qcore's kernels."""
    made = copy.deepcopy(model)
    for name, layer in linear_layers(made, head=False).items():
        weight = method.quantized(layer.weight.detach().numpy(), samples[name])
        parent, _, attribute = name.rpartition(".")
        setattr(made.get_submodule(parent), attribute, qcore.torch.Linear(weight, layer.bias, compute=compute))
    return made


def divergence(found: Evaluation) -> str:
    """Return the KL divergence and its standard error as a cell of a table."""
    assert found.comparison is not None
    return f"{found.comparison.kl_divergence:.4f} ± {found.comparison.kl_standard_error:.4f}"


def methods_table(
    methods: list[Method], model: Any, samples: dict[str, Any], texts: list[list[int]], story: list[int], head: bool
) -> tuple[list[str], dict[str, float]]:
    """Measure methods. Returns lines of Markdown, and the KL divergence by name."""
    lines = [
        "| weights | bits per weight | KL, sampled texts | same first choice | perplexity | KL, story.txt |",
        "|---|---|---|---|---|---|",
    ]
    found = {}
    for method in methods:
        made = rounded(model, method, samples, head)
        one, other = evaluate(made, texts, against=model), evaluate(made, story, against=model)
        assert one.comparison is not None
        found[method.name] = one.comparison.kl_divergence
        lines.append(
            f"| {method.name} | {method.bits_per_weight:g} | {divergence(one)} | "
            f"{one.comparison.same_first_choice:.1%} | {one.perplexity:.3f} | {divergence(other)} |"
        )
        print(lines[-1], flush=True)
    return lines, found


def kernels_table(model: Any, samples: dict[str, Any], texts: list[list[int]]) -> list[str]:
    """Measure qcore's kernels against the float model, and in float against torch with the same weights."""
    heading = "".join(f" compute={mode!r} |" for mode in COMPUTE)
    lines = [f"| weights | float32 in torch |{heading} 'float' against torch |", "|---" * (len(COMPUTE) + 3) + "|"]
    for method in all_methods():
        if method.name not in WITH_KERNELS:
            continue
        exact = rounded(model, method, samples, head=False)
        cells = [divergence(evaluate(exact, texts, against=model))]
        made = {mode: packed(model, method, samples, mode) for mode in COMPUTE}
        cells += [divergence(evaluate(each, texts, against=model)) for each in made.values()]
        same = evaluate(made["float"], texts, against=exact).comparison
        assert same is not None
        lines.append(f"| {method.name} | {' | '.join(cells)} | {same.kl_divergence:.1e} |")
        print(lines[-1], flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", action="append", choices=TABLES, help="measure this one; may be given again")
    parser.add_argument(
        "--only",
        action="append",
        choices=[method.name for method in all_methods()],
        metavar="WEIGHTS",
        help=f"measure these weights, {BAR} and {OURS}, named as in the tables; may be given again",
    )
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="write the tables between the page's markers")
    given = parser.parse_args()
    if given.only and given.write:
        parser.error("--write needs all weights, and so no --only")
    methods = [each for each in all_methods() if not given.only or each.name in (OURS, BAR, *given.only)]
    model, tokenizer = load_model(given.folder).model, load_tokenizer(given.folder)
    texts, calibration = (sample_texts(model, seed, count) for seed, count in ((0, TESTED), (1, CALIBRATED)))
    samples = layer_inputs(model, calibration)
    story = tokenizer(STORY.read_text(encoding="utf-8"))["input_ids"]
    exact = evaluate(model, texts), evaluate(model, story)
    facts = (
        f"Tokens predicted: {exact[0].tokens} of {TESTED} sampled texts, {exact[1].tokens} of story.txt. "
        f"Perplexity of the float model: {exact[0].perplexity:.3f} and {exact[1].perplexity:.3f}. "
        f"Samples for awq and gptq: {len(next(iter(samples.values())))} tokens of {CALIBRATED} other texts."
    )
    print(facts)
    sections, status = {"facts": [facts]}, 0
    for table in given.table or TABLES:
        if table == "kernels":
            sections[table] = kernels_table(model, samples, texts)
            continue
        sections[table], found = methods_table(methods, model, samples, texts, story, head=table == "embedding")
        best, bar = found[OURS], found[BAR]
        if best >= bar:
            print(f"{table}: KL {best:.4f}, expected less than Q4_0's {bar:.4f}", file=sys.stderr)
            status = 1
    if given.write is not None:
        write_page(given.write, sections)
    return status


def write_page(page: Path, sections: dict[str, list[str]]) -> None:
    """Replace what is between the markers of each section in a page."""
    text = page.read_text(encoding="utf-8")
    for name, lines in sections.items():
        first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(first)
        text = "\n".join([before + first, "", *lines, "", last + rest.split(last)[1]])
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
