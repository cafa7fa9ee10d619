#!/usr/bin/env python3
"""Draws the pictures of docs/luts.md into docs/images/lut: the scheme, and every table that ships with qcore.

python scripts/lut_pictures.py                  # needs an installed qcore and its extra [plot]; a minute
python scripts/lut_pictures.py silu plain/exp   # these only
"""

import io
import itertools
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from qcore.lut import table
from qcore.lut.functions import FUNCTIONS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images" / "lut"
DPI, COLORS = 90, 128  # 900 x 600
INK, LINE, CUT, SHADES = "#123a5c", "#9ec5e8", "#8a8a8a", ("#eef4fa", "#dbe8f4")
CUTS = (-4.0, -2.6, -1.1, 0.9, 2.4, 4.0)
SEGMENTS = 4


def scheme() -> None:
    """Five intervals of four segments, where qcore's tables have ten of 32."""
    matplotlib.rcParams.update({"svg.hashsalt": "qcore", "svg.fonttype": "none", "font.size": 12})
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axis, memory = figure.subplots(2, 1, height_ratios=(5, 1.6))
    lengths = [1, *[SEGMENTS] * (len(CUTS) - 3), 1]
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    knots = [np.linspace(low, high, n + 1)[:-1] for low, high, n in zip(CUTS[:-1], CUTS[1:], lengths, strict=True)]
    x = np.concatenate([*knots, CUTS[-1:]])

    draw_curve(axis, x)
    draw_memory(memory, lengths, firsts)
    figure.savefig(FOLDER / "scheme.svg", metadata={"Date": None})


def curve(x: Any) -> Any:
    return np.tanh(x) + 0.15 * x


def draw_curve(axis: Any, x: Any) -> None:
    fine = np.linspace(-4.9, 4.9, 400)
    axis.plot(fine, curve(fine), color=LINE, lw=6, solid_capstyle="round")
    axis.plot([-4.9, *x, 4.9], [curve(x[0]), *curve(x), curve(x[-1])], color=INK, lw=1.3)
    axis.plot(x, curve(x), "o", color=INK, ms=4.5)
    for i, cut in enumerate(CUTS):
        axis.axvline(cut, color=CUT, lw=1, ls=(0, (4, 2)), zorder=0)
        axis.annotate(f"$c_{i}$", (cut, -1.98), ha="center", va="top", annotation_clip=False)
    for i, (low, high) in enumerate(itertools.pairwise(CUTS)):
        axis.axvspan(low, high, color=SHADES[i % 2], zorder=-1)
        inner = 0 < i < len(CUTS) - 2
        count = f"{SEGMENTS} segments" if inner else "1 segment"
        axis.annotate(f"interval {i}\n{count}", ((low + high) / 2, 2.5), ha="center", va="top", fontsize=11)
    axis.annotate("$x < c_0$", (-4.45, -1.3), ha="center", fontsize=11)
    axis.annotate("$x > c_5$", (4.45, 1.1), ha="center", fontsize=11)
    axis.set(xlim=(-4.9, 4.9), ylim=(-1.9, 2.6), xticks=[], yticks=[])
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def draw_memory(axis: Any, lengths: list[int], firsts: Any) -> None:
    """Draw the entries in their order, the first one of each interval named."""
    for i, length in enumerate(lengths):
        for entry in range(firsts[i], firsts[i] + length):
            axis.add_patch(matplotlib.patches.Rectangle((entry, 0), 1, 1, fc=SHADES[i % 2], ec=CUT, lw=0.8))
        axis.annotate(f"first$_{i}$", (firsts[i] + 0.5, -0.12), ha="center", va="top", fontsize=11)
    axis.add_patch(matplotlib.patches.Rectangle((firsts[-1], 0), 1, 1, fc="white", ec=CUT, lw=0.8))
    axis.annotate(f"first$_{len(lengths)}$", (firsts[-1] + 0.5, -0.12), ha="center", va="top", fontsize=11)
    for entry in range(firsts[-1] + 1):
        axis.annotate(str(entry), (entry + 0.5, 0.48), ha="center", va="center", fontsize=10.5, color=INK)
    axis.annotate("t", (-0.35, 0.48), ha="center", va="center", fontsize=13, style="italic")
    axis.set(xlim=(-0.8, firsts[-1] + 1.2), ylim=(-0.75, 1.15))
    axis.axis("off")


def gallery(name: str, reduced: bool, file: str) -> None:
    figure = table(name, range_reduction=reduced).plot()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    target = FOLDER / f"{file}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.open(picture).convert("RGB").quantize(COLORS).save(target, optimize=True)


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = {"scheme": scheme}
    for name, function in FUNCTIONS.items():
        pictures = {f"reduced/{name}": True, f"plain/{name}": False} if function.reduction else {name: False}
        for file, reduced in pictures.items():
            made[file] = lambda name=name, reduced=reduced, file=file: gallery(name, reduced, file)
    wanted = sys.argv[1:] or list(made)
    unknown = [name for name in wanted if name not in made]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; expected some of: {', '.join(made)}", file=sys.stderr)
        return 2
    for name in wanted:
        made[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
