"""Results, as JSON and back. Everything that a report shows is in here; nothing is measured again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import qcore

from .contender import OURS

SCHEMA = 1


@dataclass
class Row:
    """One contender in one case."""

    name: str
    library: str
    weight_bits: int
    block_size: int | None
    offsets: bool
    activations: str
    arithmetic: str
    weight_bytes: int
    bits_per_weight: float
    milliseconds: float  # median
    minimum: float
    spread: float  # interquartile range / median
    samples: int
    disturbed: int  # samples with somebody else on the processor, however often repeated
    gops: float
    weight_gbs: float
    read_fraction: float | None  # of the read probe's bandwidth, both from the same moments
    dot_fraction: float | None  # of the peak of its arithmetic
    error: float | None
    error_outliers: float | None
    kernel: str
    same_as_reference: bool | None

    @property
    def ours(self) -> bool:
        return self.library == OURS

    @property
    def bound_fraction(self) -> float | None:
        """Of the roofline: the longer of the two least times, over the time taken."""
        known = [part for part in (self.read_fraction, self.dot_fraction) if part is not None]
        return max(known) if known else None


@dataclass
class Case:
    name: str
    workload: str
    parameters: dict[str, int]
    operations: int
    limits: dict[str, float | None]  # "read" in GB/s, "int8" and "fp32" in 10^9 operations per second
    rows: list[Row]  # fastest first
    skipped: dict[str, str]


@dataclass
class Document:
    operator: str
    settings: dict[str, Any]
    machine: dict[str, Any]
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
        """Whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps({"schema": SCHEMA} | asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)


def load(path: Path) -> Document:
    """Raises QcoreValueError if the file is not one that save() wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        cases = [Case(**case | {"rows": [Row(**row) for row in case["rows"]]}) for case in content.pop("cases")]
        return Document(**content, cases=cases)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise qcore.QcoreValueError(
            f"bench: {path} holds no results of 'qcore bench' with schema {SCHEMA}: {error}"
        ) from error


def merge(documents: Sequence[Document]) -> Document:
    """The first document with the cases of all; where a case is in several, it is the last one's."""
    first = documents[0]
    if any(document.operator != first.operator for document in documents):
        names = ", ".join(dict.fromkeys(document.operator for document in documents))
        raise qcore.QcoreValueError(f"bench report: the files hold different operators: {names}")
    cases = {case.name: case for document in documents for case in document.cases}
    merged = Document(**{item.name: getattr(first, item.name) for item in fields(Document)})
    merged.cases = list(cases.values())
    merged.seconds = sum(document.seconds for document in documents)
    merged.unavailable = {name: why for document in documents for name, why in document.unavailable.items()}
    merged.unfinished = [name for document in documents for name in document.unfinished if name not in cases]
    return merged
