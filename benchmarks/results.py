"""Results, as JSON and back. Everything that a report shows is in here; nothing is measured again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import qcore

from .implementation import OURS

SCHEMA = 2


@dataclass
class Row:
    """One implementation in one case; what a device or an operator does not measure is None or empty.

    Fields of the type Any are numbers wherever the CPU was measured.
    """

    name: str
    library: str
    milliseconds: float  # median
    weight_bits: Any = None
    block_size: int | None = None
    offsets: bool = False
    activations: str = ""
    arithmetic: str = ""
    weight_bytes: Any = None
    bits_per_weight: Any = None
    minimum: Any = None
    spread: Any = None  # interquartile range / median
    samples: Any = None
    disturbed: int = 0  # samples during which another process used the processor, however often repeated
    gops: Any = None
    weight_gbs: Any = None
    read_fraction: float | None = None  # of the bandwidth of the read probe, or of a copy where the case has that limit
    dot_fraction: float | None = None  # of the peak of its arithmetic
    error: float | None = None
    error_outliers: float | None = None
    kernel: str = ""
    same_as_reference: bool | None = None  # bit for bit: the reference kernel; on a device `simt` or the CPU
    details: dict[str, Any] = field(default_factory=dict)  # what only this operator has

    @property
    def ours(self) -> bool:
        return self.library == OURS

    @property
    def bound_fraction(self) -> float | None:
        """Fraction of the roofline: the longer of the two shortest possible times, over the time taken."""
        known = [part for part in (self.read_fraction, self.dot_fraction) if part is not None]
        return max(known) if known else None


@dataclass
class Case:
    """One problem that all implementations solve."""

    name: str
    workload: str
    parameters: dict[str, Any]
    operations: int
    limits: dict[str, float | None]  # "read" and "copy" in GB/s, others in 10^9 operations per second
    rows: list[Row]  # fastest first
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass
class Document:
    """The results of one run of one operator on one device."""

    operator: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    device: str = "cpu"  # or "cuda"
    read_by_streams: dict[str, float] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    waited_seconds: float = 0.0
    unfinished: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)

    def mismatches(self) -> list[str]:
        rows = [(case.name, row) for case in self.cases for row in case.rows]
        return [f"{case}: {row.name}" for case, row in rows if row.same_as_reference is False]

    def save(self, path: Path) -> None:
        """Write the document as JSON, a row a line; the file appears whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self._text(), encoding="utf-8")
        os.replace(partial, path)

    def _text(self) -> str:
        content = {"schema": SCHEMA} | {item.name: getattr(self, item.name) for item in fields(self)}
        del content["cases"]
        cases = ",\n".join(_case_text(case) for case in self.cases)
        return json.dumps(content, indent=1).removesuffix("\n}") + f',\n "cases": [\n{cases}\n ]\n}}\n'


def _case_text(case: Case) -> str:
    content = {item.name: getattr(case, item.name) for item in fields(case) if item.name != "rows"}
    rows = ",\n".join(f"   {json.dumps(_row_values(row))}" for row in case.rows)
    return "  " + json.dumps(content).removesuffix("}") + f', "rows": [\n{rows}\n  ]}}'


def _row_values(row: Row) -> dict[str, Any]:
    """Return what is not a field's default."""
    values = {item.name: (getattr(row, item.name), item.default) for item in fields(row)}
    return {name: value for name, (value, default) in values.items() if value != default and value != {}}


def load(path: Path) -> Document:
    """Read a document. Raises QcoreValueError if the file is not one that save() wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        cases = [Case(**case | {"rows": [Row(**row) for row in case["rows"]]}) for case in content.pop("cases")]
        return Document(**content, cases=cases)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise qcore.QcoreValueError(f"bench: {path} holds no results with schema {SCHEMA}: {error}") from error


def merge(documents: Sequence[Document]) -> Document:
    """Return the first document with the cases of all; of a case in several documents, the last."""
    first = documents[0]
    kinds = dict.fromkeys(f"{document.operator} on {document.device}" for document in documents)
    if len(kinds) > 1:
        raise qcore.QcoreValueError(f"bench report: the files hold different operators: {', '.join(kinds)}")
    cases = {case.name: case for document in documents for case in document.cases}
    merged = Document(**{item.name: getattr(first, item.name) for item in fields(Document)})
    merged.cases = list(cases.values())
    merged.seconds = sum(document.seconds for document in documents)
    merged.unavailable = {name: why for document in documents for name, why in document.unavailable.items()}
    merged.unfinished = [name for document in documents for name in document.unfinished if name not in cases]
    return merged
