"""Reports what :func:`qcore.torch.quantize_` did."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, field
from typing import Any

LOW_SHARE = 0.9
"""Share of quantized parameters below which a report warns."""


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

    @property
    def quantized(self) -> bool:
        """Return whether the module was replaced."""
        return self.bits is not None or self.compute is not None


@dataclass
class Report:
    """Describes what became of a model.

    Attributes:
        layers: in the model's order; modules without a rule come last.
        model_error: relative L2 error of the model's outputs on the calibration; None without one.
        parameters: number of the model's parameters before; those that are shared count once.
        quantized_parameters: number of those that belonged to layers which were quantized.
        bytes_before, bytes_after: of all parameters and buffers of the model; memory that is shared counts once.
        other_parameters: for the class of each module that is no layer and has only vectors (norms), the number of its
            parameters, which stay as they are.
    """

    layers: list[LayerReport] = field(default_factory=list)
    model_error: float | None = None
    parameters: int = 0
    quantized_parameters: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    other_parameters: dict[str, int] = field(default_factory=dict)

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
        for heading, side in (
            ("layer", "left"),
            ("kind", "left"),
            ("bytes", "right"),
            ("quantized", "right"),
            ("bits", "right"),
            ("compute", "left"),
            ("error", "right"),
            ("note", "left"),
        ):
            made.add_column(heading, justify=side)  # type: ignore[arg-type]
        for layer in self.layers:
            made.add_row(
                layer.name,
                layer.kind,
                f"{layer.bytes_before:,}",
                f"{layer.bytes_after:,}" if layer.quantized else "-",
                str(layer.bits or "-"),
                layer.compute or "-",
                "-" if layer.error is None else f"{layer.error:.2e}",
                layer.note,
            )
        return made

    def _title(self) -> str:
        done = sum(layer.quantized for layer in self.layers)
        error = "" if self.model_error is None else f", error of the outputs {self.model_error:.2e}"
        return (
            f"{done} of {len(self.layers)} layers and {self.share:.1%} of {self.parameters:,} parameters quantized, "
            f"{self.bytes_before:,} -> {self.bytes_after:,} bytes{error}"
        )

    def _caption(self) -> str:
        lines = []
        if self.other_parameters:
            others = ", ".join(f"{kind} {number:,}" for kind, number in self.other_parameters.items())
            lines.append(f"Parameters that are no matrices and stay: {others}")
        if self.warning:
            lines.append(f"Warning: {self.warning}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the whole report as a JSON text."""
        return json.dumps(asdict(self) | {"share": self.share, "warning": self.warning})

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=140).print(self.table())
        return text.getvalue().rstrip()
