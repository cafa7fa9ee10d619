"""Reports what :func:`qcore.torch.quantize_` did."""

from __future__ import annotations

import io
import json
import logging
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from qcore import _core
from qcore._display import html, plots

_LOG = logging.getLogger("qcore.torch")
_WHERE = "Report.plot"
_LEAST_ERROR = 1e-8
"""Errors below this are drawn here."""
_COLORS = {2: "#8c3a5b", 3: "#c8553d", 4: "#e39b45", 5: "#6a9f58", 6: "#4a86b8", 8: "#123a5c"}
"""Colors of a plot by bits."""
_HEADINGS = (
    "layer",
    "kind",
    ">bytes",
    ">quantized",
    ">bits",
    ">block",
    ">per weight",
    "compute",
    ">error",
    "note",
)
LOW_SHARE = 0.9
"""Share of quantized parameters below which a report warns."""


@dataclass(frozen=True)
class Candidate:
    """Describes a format that ``target_bits`` could choose for a layer.

    Attributes:
        bits: bits of the weight's codes.
        block_size: elements along K that share a scale.
        nbytes: bytes of codes, scales and offsets.
        error: relative L2 error of the model's outputs on the calibration with only this layer quantized; of layers
            that share a weight, with all of them.
        encoding: name of the encoding, None without one.
    """

    bits: int
    block_size: int
    nbytes: int
    error: float
    encoding: str | None = None


@dataclass
class LayerReport:
    """Describes one layer; a module that has several parents or names is described once.

    Attributes:
        name: name of the module in the model.
        kind: name of the class that it had.
        bytes_before, bytes_after: bytes of the tensors in its state_dict; equal where it was left.
        error: relative L2 error of its output on the calibration's inputs, or without a calibration of its weight; None
            where it was left or has neither.
        bits: bits of its weight; None where it was left.
        compute: compute mode as for :func:`qcore.linear`, or the kind of a module without one, such as "gru"; None
            where it was left.
        note: why it was left in floating point, or another remark.
        parameters: number of its parameters before.
        asked: whether the caller asked for it to be left.
        block_size: elements along K that share a scale; None where it was left or has none.
        candidates: with ``target_bits``, the formats that were measured, by bits and block size.
        encoding: name of its weight's encoding, as ``quantize_`` was given it; None without one.
        bits_per_weight: mean of its packed weights, of codes, scales and offsets as stored; None if it has none.
    """

    name: str
    kind: str
    bytes_before: int
    bytes_after: int
    error: float | None = None
    bits: int | None = None
    compute: str | None = None
    note: str = ""
    parameters: int = 0
    asked: bool = False
    block_size: int | None = None
    candidates: list[Candidate] = field(default_factory=list)
    encoding: str | None = None
    bits_per_weight: float | None = None

    @property
    def chosen(self) -> Candidate | None:
        """Return the candidate that was chosen; None without ``target_bits``."""
        form = self.bits, self.block_size, self.encoding
        return next((each for each in self.candidates if (each.bits, each.block_size, each.encoding) == form), None)

    @property
    def quantized(self) -> bool:
        """Return whether the module was replaced."""
        return self.bits is not None or self.compute is not None


@dataclass
class Report:
    """Describes the result of :func:`quantize_` on a model.

    Attributes:
        layers: in the model's order; modules without a rule come last.
        model_error: relative L2 error of the model's outputs on the calibration; None without one.
        parameters: number of the model's parameters before; those that are shared count once.
        quantized_parameters: number of those that belonged to layers which were quantized.
        bytes_before, bytes_after: of all parameters and buffers of the model; memory that is shared counts once.
        other_parameters: for the class of each module that is no layer and has only vectors (norms), the number of its
            parameters, which stay as they are.
        bits_per_weight: mean of all packed weights, of codes, scales and offsets as stored; None if there are none.
        rotation: in how many layers a rotation is folded into the weights, in how many it is computed online, and why
            it was not folded; empty if no layer is rotated.
    """

    layers: list[LayerReport] = field(default_factory=list)
    model_error: float | None = None
    parameters: int = 0
    quantized_parameters: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    other_parameters: dict[str, int] = field(default_factory=dict)
    bits_per_weight: float | None = None
    rotation: str = ""

    @property
    def share(self) -> float:
        """Return the share of the model's parameters that were quantized, from 0 to 1."""
        return self.quantized_parameters / self.parameters if self.parameters else 1.0

    @property
    def warning(self) -> str:
        """Return a text that names what was left if less than 90% of the parameters were quantized, else an empty one.

        Parameters that the caller asked to leave are not counted.
        """
        asked = sum(layer.parameters for layer in self.layers if layer.asked)
        if self.quantized_parameters >= LOW_SHARE * (self.parameters - asked):
            return ""
        left: dict[str, int] = {}
        for layer in self.layers:
            if not layer.quantized and not layer.asked:
                reason = f"{layer.kind}: {layer.note}"
                left[reason] = left.get(reason, 0) + layer.parameters
        reasons = sorted(left.items(), key=lambda item: -item[1])
        named = "; ".join(f"{reason} ({number:,} parameters)" for reason, number in reasons[:5])
        more = f"; and {len(reasons) - 5} more reasons" if len(reasons) > 5 else ""
        return (
            f"{self.quantized_parameters:,} of {self.parameters:,} parameters ({self.share:.0%}) were quantized. Left: "
            f"{named or 'modules without matrices'}{more}"
        )

    def table(self) -> Any:
        """Return a rich table with a row per layer."""
        from rich.table import Table

        made = Table(title=self._title(), caption=self._caption(), caption_justify="left")
        for heading in _HEADINGS:
            made.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
        for row in self._rows():
            made.add_row(*row)
        return made

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                layer.name,
                layer.kind,
                f"{layer.bytes_before:,}",
                f"{layer.bytes_after:,}" if layer.quantized else "-",
                layer.encoding or str(layer.bits or "-"),
                str(layer.block_size or "-"),
                "-" if layer.bits_per_weight is None else f"{layer.bits_per_weight:.4g}",
                layer.compute or "-",
                "-" if layer.error is None else f"{layer.error:.2e}",
                layer.note,
            )
            for layer in self.layers
        ]

    def _repr_html_(self) -> str:
        """Return what notebooks show: the table."""
        return html.table(self._title(), _HEADINGS, self._rows(), self._caption())

    def _title(self) -> str:
        done = sum(layer.quantized for layer in self.layers)
        width = "" if self.bits_per_weight is None else f", {self.bits_per_weight:.4g} bits per packed weight"
        error = "" if self.model_error is None else f", error of the outputs {self.model_error:.2e}"
        return (
            f"{done} of {len(self.layers)} layers and {self.share:.1%} of {self.parameters:,} parameters quantized, "
            f"{self.bytes_before:,} -> {self.bytes_after:,} bytes{width}{error}"
        )

    def _caption(self) -> str:
        lines = []
        if self.other_parameters:
            others = ", ".join(f"{kind} {number:,}" for kind, number in self.other_parameters.items())
            lines.append(f"Parameters that are no matrices and stay: {others}")
        if self.rotation:
            lines.append(f"Rotation: {self.rotation}")
        if self.warning:
            lines.append(f"Warning: {self.warning}")
        return "\n".join(lines)

    def log(self) -> None:
        """Log what became of each layer, under ``qcore.torch`` at level INFO."""
        for layer in self.layers:
            if layer.quantized:
                form = layer.encoding or f"{layer.bits} bits"
                note = f" ({layer.note})" if layer.note else ""
                _LOG.info("quantize_: %s (%s): %s, compute %s%s", layer.name, layer.kind, form, layer.compute, note)
            else:
                _LOG.info("quantize_: %s (%s) is left: %s", layer.name, layer.kind, layer.note)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw what ``target_bits`` measured and chose; needs matplotlib (``pip install 'libqcore[plot]'``).

        The upper picture has the error of each layer's candidates over their bytes, the chosen one marked; the lower
        one the bits of each layer and its share of the squared error. The title has the bytes and the error of the
        model before and after.

        Args:
            path: .png (1200 x 800), .svg or .pdf to write, whole or not at all; None writes nothing.

        Returns:
            matplotlib's Figure, for Agg.

        Raises:
            QcoreValueError, QcoreTypeError: the report has no candidates, another ending, or no matplotlib.
            OSError: the file can't be written.
        """
        if not any(layer.candidates for layer in self.layers):
            raise _core.QcoreValueError(
                f"{_WHERE}: no layer has candidates, expected the report of quantize_ with target_bits"
            )
        if path is not None:
            plots.ending(path, _WHERE)
        with plots.module("matplotlib", _WHERE).rc_context(plots.STYLE):
            figure = plots.new_figure(_WHERE)
            upper, lower = figure.subplots(2, 1, height_ratios=(3, 2))
            # Layers that share a weight share their candidates; they are drawn once.
            rows = list({id(layer.candidates): layer for layer in self.layers if layer.chosen is not None}.values())
            _draw_errors(upper, rows)
            _draw_widths(lower, rows)
            error = "" if self.model_error is None else f", error of the outputs 0 \u2192 {self.model_error:.2e}"
            figure.suptitle(
                f"{self.bytes_before:,} \u2192 {self.bytes_after:,} bytes, {self.bits_per_weight:.4g} bits per packed "
                f"weight{error}",
                fontsize=12,
            )
            if path is not None:
                plots.write(figure, path)
        return figure

    def to_json(self) -> str:
        """Return the whole report as a JSON text."""
        return json.dumps(asdict(self) | {"share": self.share, "warning": self.warning})

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        table = self.table()
        # The table is wide enough for all names, because a program that reads it needs them whole.
        width = max([140, *(len(layer.name) + len(layer.kind) + 110 for layer in self.layers)])
        table.columns[0].no_wrap = True
        Console(file=text, width=width).print(table)
        return text.getvalue().rstrip()


def _draw_errors(axis: Any, rows: list[LayerReport]) -> None:
    """Draw the error of each layer's candidates over their bytes."""
    for row in rows:
        points = sorted((each.nbytes, max(each.error, _LEAST_ERROR)) for each in row.candidates)
        axis.plot(*zip(*points, strict=True), color="0.75", lw=0.7, marker=".", ms=2.5, zorder=1)
    for bits in sorted({row.bits for row in rows}):  # type: ignore[type-var]
        chosen = [row.chosen for row in rows if row.bits == bits and row.chosen is not None]
        axis.scatter(
            [each.nbytes for each in chosen],
            [max(each.error, _LEAST_ERROR) for each in chosen],
            color=_COLORS.get(bits or 0, "black"),
            s=28,
            zorder=2,
            label=f"{bits} bits chosen",
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("bytes of the layer's weight")
    axis.set_ylabel("error of the outputs\nwith only this layer quantized")
    axis.grid(True, which="major", lw=0.4, color="0.88")
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_widths(axis: Any, rows: list[LayerReport]) -> None:
    """Draw the bits of each layer's chosen candidate and its share of the squared error."""
    squares = [row.chosen.error**2 if row.chosen is not None else 0.0 for row in rows]
    total = sum(squares) or 1.0
    widths = [(row.bits or 0) for row in rows]
    places = range(len(rows))
    axis.bar(places, widths, color=[_COLORS.get(width, "black") for width in widths], alpha=0.6)
    axis.set_ylabel("bits")
    axis.set_xlim(-0.6, len(rows) - 0.4)
    step = -(-len(rows) // 60)
    axis.set_xticks(places[::step], [row.name for row in rows][::step], rotation=90, fontsize=6)
    share = axis.twinx()
    share.plot(places, [square / total for square in squares], color="black", marker="o", ms=3, lw=0)
    share.set_ylim(bottom=0)
    share.spines["right"].set_visible(True)
    share.set_ylabel("share of the squared error (dots)", fontsize=9)
