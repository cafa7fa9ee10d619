#!/usr/bin/env python3
"""Draws the pictures of docs/concepts.md into docs/images/concepts, each for a light and a dark page.

python scripts/concept_pictures.py              # needs an installed qcore and its extra [plot]; seconds

The numbers in them are the library's own.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

import qcore
from qcore import lut

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images" / "concepts"
matplotlib.rcParams.update({"svg.hashsalt": "qcore", "svg.fonttype": "none", "font.size": 11})


@dataclass(frozen=True)
class Colors:
    ink: str
    faint: str
    first: str
    second: str
    float_box: str
    integer_box: str


LIGHT = Colors("#1f2933", "#b6c0c9", "#1769aa", "#b35c00", "#eef1f4", "#dbe8f4")
DARK = Colors("#e4e7eb", "#5f6b76", "#7ab8f0", "#f0a860", "#39414d", "#274566")


class Picture:
    """A figure on a transparent ground, with boxes and arrows in units of its axis."""

    def __init__(self, width: float, height: float, colors: Colors) -> None:
        self.colors = colors
        self.figure = Figure(figsize=(width, height))
        self.figure.patch.set_alpha(0)
        FigureCanvasAgg(self.figure)

    def plane(self, width: float, height: float) -> Any:
        axis = self.figure.add_axes((0, 0, 1, 1))
        axis.set(xlim=(0, width), ylim=(0, height))
        axis.axis("off")
        return axis

    def box(self, axis: Any, x: float, y: float, width: float, height: float, title: str, *lines: str, **options: Any):
        """Draw a box centered at (x, y); integers=True if it holds integers only."""
        fill = self.colors.integer_box if options.get("integers") else self.colors.float_box
        corner = (x - width / 2, y - height / 2)
        axis.add_patch(
            FancyBboxPatch(
                corner, width, height, boxstyle="round,pad=0,rounding_size=0.12", fc=fill, ec=self.colors.faint, lw=1
            )
        )
        step = 0.31
        top = y + step * len(lines) / 2
        axis.text(x, top, title, ha="center", va="center", color=self.colors.ink, weight="bold", fontsize=10.5)
        for number, line in enumerate(lines, 1):
            axis.text(x, top - step * number, line, ha="center", va="center", color=self.colors.ink, fontsize=9.5)

    def arrow(self, axis: Any, start: tuple[float, float], end: tuple[float, float], text: str = "", side: float = 0.1):
        axis.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=11, color=self.colors.ink, lw=1.1, shrinkA=0, shrinkB=0
            )
        )
        if text:
            x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
            axis.text(x + side, y, text, va="center", color=self.colors.ink, fontsize=9)

    def save(self, name: str) -> None:
        self.figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, transparent=True)


def listed(values: Any, form: str) -> str:
    return "[" + ", ".join(format(value, form) for value in values) + "]"


def block(colors: Colors, name: str) -> None:
    """Draw a row of two blocks: the values, the grid of each block, the codes and scales that are stored."""
    g, rng = 12, np.random.default_rng(3)
    row = np.concatenate([rng.normal(0, 0.2, g), rng.normal(0, 0.55, g)]).astype(np.float32)
    made = qcore.quantize(row[None], bits=4, block_size=g, method="rtn", scale_dtype="float32")
    codes, scales, values = made.codes()[0], made.scales()[0], made.dequantize()[0]

    picture = Picture(10, 4.9, colors)
    axis = picture.figure.add_axes((0.085, 0.28, 0.905, 0.64))
    axis.patch.set_alpha(0)
    for p, color in enumerate((colors.first, colors.second)):
        k = np.arange(p * g, (p + 1) * g)
        for code in range(-7, 8):
            y = scales[p] * code
            axis.plot([k[0] - 0.45, k[-1] + 0.45], [y, y], color=colors.faint, lw=0.7 if code else 1.4, zorder=0)
        axis.vlines(k, 0, row[k], color=color, lw=1.2, alpha=0.6)
        axis.plot(k, row[k], "o", ms=6.5, mfc="none", mec=color, mew=1.4)
        axis.plot(k, values[k], "_", ms=13, mew=2.6, color=color)
    axis.set(xlim=(-0.6, 2 * g - 0.4), ylim=(-0.95, 0.95), xticks=[])
    axis.tick_params(colors=colors.ink)
    axis.set_ylabel("weight", color=colors.ink)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_title(
        "circles: weights · bars: what they become · lines: the block's 15 values scale * code",
        fontsize=10.5,
        color=colors.ink,
    )

    stored = picture.figure.add_axes((0.085, 0.01, 0.905, 0.25), sharex=axis)
    stored.set(ylim=(0, 3))
    stored.axis("off")
    for k, code in enumerate(codes):
        fill = colors.integer_box if k < g else colors.float_box
        stored.add_patch(Rectangle((k - 0.46, 1.8), 0.92, 1.05, fc=fill, ec=colors.faint, lw=0.8))
        stored.text(k, 2.3, f"{code}", ha="center", va="center", color=colors.ink, fontsize=10.5)
    for p, color in enumerate((colors.first, colors.second)):
        middle = p * g + (g - 1) / 2
        largest = np.abs(row[p * g : (p + 1) * g]).max()
        stored.plot([p * g - 0.4, (p + 1) * g - 0.6], [1.45, 1.45], color=color, lw=2)
        stored.text(
            middle,
            0.75,
            f"block {p}: scale = max|w| / 7 = {largest:.3f} / 7 = {scales[p]:.4f}",
            ha="center",
            va="center",
            color=colors.ink,
            fontsize=10.5,
        )
    picture.save(name)


def linear(colors: Colors, name: str) -> None:
    """Draw one element of a result, K = 8 in two blocks of 4."""
    x = np.array([[0.9, -0.4, 0.1, 0.6, 3.0, -2.1, 0.5, 1.2]], np.float32)
    weight = np.array([[0.30, 0.11, -0.21, 0.07, 0.50, -0.14, 0.36, -0.43]], np.float32)
    w = qcore.quantize(weight, bits=4, block_size=4, method="rtn", scale_dtype="float32")
    activations = qcore.quantize_activations(x, 4)
    qa, sa = activations.codes[0], activations.scales[0]
    qb, sb = w.codes()[0], w.scales()[0]
    sums = (qa.astype(np.int32) * qb).reshape(2, 4).sum(axis=1)
    y = qcore.linear(x, w)[0, 0]
    exact = (x.astype(np.float64) @ weight.T.astype(np.float64))[0, 0]

    picture = Picture(10, 6.1, colors)
    axis = picture.plane(10, 6.1)
    picture.box(axis, 2.5, 5.55, 4.5, 0.85, "x, float", listed(x[0], ".1f"))
    picture.box(axis, 7.5, 5.55, 4.5, 0.85, "weight, float", listed(weight[0], ".2f"))
    picture.box(
        axis, 2.5, 3.95, 4.5, 1.15, "int8 codes of x, a scale per row and block",
        f"{listed(qa[:4], 'd')}  {listed(qa[4:], 'd')}", f"scales {sa[0]:.5f}, {sa[1]:.5f}", integers=True,
    )  # fmt: skip
    picture.box(
        axis, 7.5, 3.95, 4.5, 1.15, "QuantizedTensor: 4-bit codes, a scale per block",
        f"{listed(qb[:4], 'd')}  {listed(qb[4:], 'd')}", f"scales {sb[0]:.5f}, {sb[1]:.5f}", integers=True,
    )  # fmt: skip
    picture.arrow(axis, (2.5, 5.1), (2.5, 4.55), "in every call")
    picture.arrow(axis, (7.5, 5.1), (7.5, 4.55), "once: qcore.quantize")
    picture.box(
        axis, 5, 2.45, 5.4, 0.85, "sums of products of codes, block by block: exact integers",
        f"acc = {sums[0]} and {sums[1]}", integers=True,
    )  # fmt: skip
    picture.arrow(axis, (2.5, 3.35), (4.2, 2.9))
    picture.arrow(axis, (7.5, 3.35), (5.8, 2.9))
    picture.box(
        axis, 5, 0.85, 8.2, 1.15, "y = fma(acc, scale of x * scale of weight, y), block after block, in float32",
        "then bias, activation, one rounding to the output's dtype",
        f"y = {y:.4f}; with the float weight {exact:.4f}",
    )  # fmt: skip
    picture.arrow(axis, (5, 2.0), (5, 1.45))
    picture.save(name)


def table(colors: Colors, name: str) -> None:
    """Draw one look-up in the table of silu."""
    made = lut.table("silu")
    cuts, values = made.cuts, made.values.astype(np.float32)
    x = np.float32(-2.5)
    i = int(np.searchsorted(cuts, x, side="right")) - 1
    lengths = np.array([1, *[made.segments] * (len(cuts) - 3), 1])
    scale = np.float32(lengths[i]) / (cuts[i + 1] - cuts[i])
    p = np.float32((x - cuts[i]) * scale)
    j = int(p)
    q = int(lengths[:i].sum()) + j
    y = made(np.array([x]))[0]

    picture = Picture(10, 3.3, colors)
    axis = picture.plane(10, 3.3)
    top, low = 2.45, 0.75
    picture.box(axis, 1.0, top, 1.5, 0.95, "x", f"{x:g}")
    picture.box(
        axis, 3.95, top, 2.9, 0.95, f"interval {i}: cut {i} <= x < cut {i + 1}",
        f"{cuts[i]:.4g} <= {x:g} < {cuts[i + 1]:.4g}",
    )  # fmt: skip
    picture.box(
        axis, 7.95, top, 3.6, 0.95, "p = (x - cut) * segments per unit", f"p = {p:.3f}: segment {j}, a = {p - j:.3f}"
    )
    picture.box(
        axis, 7.95, low, 3.6, 0.95, f"entries {q} and {q + 1} of the {len(values)}, fp16",
        f"{values[q]:.5f} and {values[q + 1]:.5f}",
    )  # fmt: skip
    picture.box(axis, 3.95, low, 2.9, 0.95, "y = fma(a, t1 - t0, t0)", f"{y:.5f}")
    exact = float(x) / (1 + np.exp(-float(x)))
    picture.box(axis, 1.0, low, 1.5, 0.95, "silu(x)", f"exactly {exact:.5f}")
    picture.arrow(axis, (1.78, top), (2.48, top))
    picture.arrow(axis, (5.42, top), (6.13, top))
    picture.arrow(axis, (7.95, top - 0.5), (7.95, low + 0.5))
    picture.arrow(axis, (6.13, low), (5.42, low))
    picture.arrow(axis, (2.48, low), (1.78, low))
    picture.save(name)


def gru(colors: Colors, name: str) -> None:
    """Draw a step of the staged pipeline; names as in docs/gru.md."""
    picture = Picture(10, 5.6, colors)
    axis = picture.plane(10, 5.6)

    def box(x: float, y: float, width: float, *text: str) -> None:
        picture.box(axis, x, y, width, 0.72 if len(text) > 1 else 0.55, *text, integers=True)

    box(0.75, 4.55, 1.1, "x", "codes")
    box(0.75, 1.05, 1.1, "h", "codes")
    box(2.5, 4.55, 1.4, "wx = W x", "int8 x int8")
    box(2.5, 2.55, 1.4, "rh = R h", "int8 x int8")
    box(4.75, 4.9, 1.7, "z_pre", "wx + rh + biases")
    box(4.75, 3.75, 1.7, "r_pre", "wx + rh + biases")
    box(4.75, 2.35, 1.7, "rb = rh + bias")
    box(6.95, 4.9, 1.2, "z", "sigmoid")
    box(6.95, 3.75, 1.2, "r", "sigmoid")
    box(6.95, 2.35, 1.2, "r * rb")
    box(8.85, 2.95, 1.7, "g_pre", "wx + r * rb + bias")
    box(8.85, 1.75, 1.2, "g", "tanh")
    box(6.2, 0.55, 5.6, "h' = z * h + (1 - z) * g", "old_part + new_part, the next step's h")
    arrow = picture.arrow
    arrow(axis, (1.32, 4.55), (1.78, 4.55))
    arrow(axis, (0.95, 1.43), (2.05, 2.17))
    arrow(axis, (3.22, 4.65), (3.88, 4.85))
    arrow(axis, (3.22, 4.35), (3.88, 3.95))
    arrow(axis, (3.1, 2.93), (4.15, 4.52))
    arrow(axis, (3.22, 2.8), (3.95, 3.38))
    arrow(axis, (3.22, 2.5), (3.88, 2.38))
    arrow(axis, (5.62, 4.9), (6.33, 4.9))
    arrow(axis, (5.62, 3.75), (6.33, 3.75))
    arrow(axis, (6.95, 3.37), (6.95, 2.65))
    arrow(axis, (5.62, 2.35), (6.33, 2.35))
    arrow(axis, (7.57, 2.45), (7.98, 2.7))
    axis.plot([2.5, 2.5, 9.3], [4.92, 5.42, 5.42], color=colors.ink, lw=1.1)
    arrow(axis, (9.3, 5.42), (9.3, 3.33))
    arrow(axis, (8.85, 2.57), (8.85, 2.13))
    arrow(axis, (8.85, 1.38), (8.85, 0.93))
    axis.plot([7.57, 7.77], [4.9, 4.9], color=colors.ink, lw=1.1)
    arrow(axis, (7.77, 4.9), (7.77, 0.93))
    arrow(axis, (1.32, 0.9), (3.38, 0.65))
    picture.save(name)


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in (block, linear, table, gru):
        for mode, colors in (("light", LIGHT), ("dark", DARK)):
            draw(colors, f"{draw.__name__}-{mode}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
