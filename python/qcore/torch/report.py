"""What :func:`qcore.torch.quantize_` did."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class LayerReport:
    """One layer; a module that several parents share, or that several names have, is there once.

    Attributes:
        name: in the model.
        kind: the class it had.
        bytes_before, bytes_after: of the tensors in its state_dict; the same where it was left.
        error: relative L2 error: of its output on the calibration's inputs, or without those of its weight; None where
            it was left or has neither.
        bits: of its weight; None where it was left.
        compute: as for :func:`qcore.linear`; None where it was left.
        note: why it was left as it is, or what else is to be known.
    """

    name: str
    kind: str
    bytes_before: int
    bytes_after: int
    error: float | None = None
    bits: int | None = None
    compute: str | None = None
    note: str = ""

    @property
    def quantized(self) -> bool:
        """Whether it was replaced."""
        return self.bits is not None or self.compute is not None


@dataclass
class Report:
    """What became of a model.

    Attributes:
        layers: in the model's order.
        model_error: relative L2 error of the model's outputs on the calibration; None without one.
    """

    layers: list[LayerReport] = field(default_factory=list)
    model_error: float | None = None

    @property
    def bytes_before(self) -> int:
        """Of all layers."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Of all layers."""
        return sum(layer.bytes_after for layer in self.layers)

    def table(self) -> Any:
        """A rich table."""
        from rich.table import Table

        made = Table(title=self._title())
        for heading, side in (
            ("layer", "left"),
            ("kind", "left"),
            ("bytes", "right"),
            ("quantised", "right"),
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
            f"{done} of {len(self.layers)} layers quantised, {self.bytes_before:,} -> {self.bytes_after:,} bytes{error}"
        )

    def to_json(self) -> str:
        """All of it."""
        return json.dumps({"model_error": self.model_error, "layers": [asdict(layer) for layer in self.layers]})

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=140).print(self.table())
        return text.getvalue().rstrip()
