"""Draws the charts of docs/measurements/performance.md from the kept results, as SVG without any library.

The same results give the same bytes, so that a check compares files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..results import Case, Row
from .kept import named, results

_INK, _FAINT, _PAPER = "#1f2933", "#d9dfe5", "#ffffff"
_COLORS = ("#1769aa", "#5aa9e6", "#7a8794", "#c3c9cf")
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 480, 112, 48, 15, 12


@dataclass(frozen=True)
class Bars:
    """Holds a chart of horizontal bars.

    Attributes:
        title: what is shown.
        unit: what the numbers are.
        series: names of the bars of a group, in their order.
        groups: (label, one value for each series or None) in their order.
        mark: value at which a vertical line is drawn, or None.
    """

    title: str
    unit: str
    series: Sequence[str]
    groups: Sequence[tuple[str, Sequence[float | None]]]
    mark: float | None = None

    def svg(self) -> str:
        """Return the picture."""
        most = max(value for _, values in self.groups for value in values if value is not None)
        scale = (_WIDTH - _LEFT - _RIGHT) / most
        parts = [_text(12, 24, self.title, size=14, weight="bold"), _text(12, 43, self.unit, size=12)]
        x, y, boxes = 12.0, 55.0, []
        for name, color in zip(self.series, _COLORS, strict=False):
            width = 30 + 6.4 * len(name)
            if x + width > _WIDTH:
                x, y = 12.0, y + 19
            boxes.append(_box(x, y, 11, 11, color))
            parts.append(_text(x + 16, y + 10, name, size=12))
            x += width
        y += 25
        top = y
        for label, values in self.groups:
            shown = [(value, color) for value, color in zip(values, _COLORS, strict=False) if value is not None]
            middle = y + len(shown) * _BAR / 2 + 4
            parts.append(_text(_LEFT - 10, middle, label, size=12, anchor="end"))
            for value, color in shown:
                boxes.append(_box(_LEFT, y + 1, value * scale, _BAR - 2, color))
                parts.append(_text(_LEFT + value * scale + 5, y + 12, _number(value), size=11))
                y += _BAR
            y += _GAP
        line = []
        if self.mark is not None:
            at = _LEFT + self.mark * scale
            line.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 4:.0f}" y2="{y - _GAP + 4:.0f}" '
                f'stroke="{_INK}" stroke-dasharray="3 3"/>'
            )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" height="{y:.0f}"'
        )
        font = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"'
        body = "\n".join([_box(0, 0, _WIDTH, y, _PAPER), *boxes, *line, *parts])
        return f'{head} role="img" aria-label="{escape(self.title)}" {font} fill="{_INK}">\n{body}\n</svg>\n'


def _text(x: float, y: float, text: str, *, size: int, anchor: str = "start", weight: str = "normal") -> str:
    look = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    halo = f'stroke="{_PAPER}" stroke-width="3" paint-order="stroke"'  # where a line passes behind it
    return f'<text x="{x:.1f}" y="{y:.1f}" {look} {halo}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def fastest(case: Case, *parts: str) -> Row:
    """Return the fastest row of other libraries whose name has one of the parts; of any name without parts."""
    return next(row for row in case.rows if not row.ours and (not parts or any(part in row.name for part in parts)))


def _rows(case: Case) -> str:
    count = case.parameters["M"]
    return "1 row" if count == 1 else f"{count} rows"


def linear_cpu() -> Bars:
    """Compare a layer of 4096 x 4096 on two cores with torch's float32."""
    groups = []
    for case in results("zen4/linear").cases:
        if case.workload == "4096x4096":
            rows = [
                named(case, "qcore 4b g64 int8"),
                named(case, "qcore 8b g64 int8"),
                fastest(case),
                named(case, "torch linear bf16"),
            ]
            exact = named(case, "torch linear fp32").milliseconds
            groups.append((_rows(case), [exact / row.milliseconds for row in rows]))
    return Bars(
        "A linear layer of 4096 x 4096 on two Zen 4 cores",
        "speed as a multiple of torch in float32, compute=int8, g = 64",
        ("qcore, 4 bits", "qcore, 8 bits", "fastest other library, 4 or 8 bits", "torch bf16"),
        groups,
        mark=1.0,
    )


def linear_gpu() -> Bars:
    """Compare a layer of 4096 x 4096 on an H200 with torch's bfloat16."""
    groups = []
    for case in results("h200/linear-peers-w4").cases:
        if case.name.startswith("4096x4096 ") and case.parameters["M"] in (1, 4, 16, 64, 256, 4096):
            rows = [
                named(case, "qcore int8 w4 g128"),
                named(case, "qcore float w4 g128"),
                fastest(case, "humming float", "gemlite float"),
            ]
            exact = named(case, "torch bf16").milliseconds
            groups.append((_rows(case), [exact / row.milliseconds for row in rows]))
    return Bars(
        "A linear layer of 4096 x 4096 on an H200, 4 bits, g = 128",
        "speed as a multiple of torch in bfloat16",
        ("qcore, int8", "qcore, float", "fastest of humming and gemlite, float"),
        groups,
        mark=1.0,
    )


MODELS = {
    "qcore-fused-fp32": "qcore, fused",
    "qcore-fp32": "qcore, not fused",
    "llama.cpp-q4_0": "llama.cpp Q4_0",
    "onnxruntime-genai-int4": "ONNX Runtime",
    "openvino-int4": "OpenVINO",
    "torch-bf16": "torch, bfloat16",
}


def models_cpu() -> Bars:
    """Compare language models of 4 bits by the tokens that they write in a second."""
    kept = {name: results(f"zen4/models-{name}").cases[0] for name in ("qwen2.5-0.5b", "tinyllama-1.1b")}
    groups = []
    for name, label in MODELS.items():
        rates = [next((row.details["decode"] for row in case.rows if row.name == name), None) for case in kept.values()]
        groups.append((label, rates))
    return Bars(
        "Language models in 4 bits on two Zen 4 cores",
        "tokens per second after a prompt of 512 tokens, random weights",
        ("Qwen2.5-0.5B", "TinyLlama-1.1B"),
        groups,
    )


CHARTS = {"linear-cpu": linear_cpu, "linear-gpu": linear_gpu, "models-cpu": models_cpu}
