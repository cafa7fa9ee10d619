"""Shows objects in notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def description(title: str, rows: Mapping[str, Any]) -> str:
    """Return a table with a title and a row per fact."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"


def weight(tensor: Any) -> str:
    """Return the table of a QuantizedTensor, or of a weight with transformed columns that has one."""
    stored = getattr(tensor, "weight", tensor)
    facts = {
        "shape": " x ".join(map(str, tensor.shape)),
        "bits": tensor.bits,
        "block size": tensor.block_size,
        "scheme": tensor.scheme,
        "scales": stored.scale_dtype,
        "device": tensor.device,
        "bytes": f"{tensor.nbytes:,}",
        "bits per weight": f"{tensor.bits_per_weight:.3g}",
    }
    return description(type(tensor).__name__, facts)


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], notes: str = "") -> str:
    """Return a table with a row of headings; a heading that begins with > is that of a column of numbers."""
    sides = ["right" if heading.startswith(">") else "left" for heading in headings]
    head = "".join(_cell("th", text.removeprefix(">"), side) for text, side in zip(headings, sides, strict=True))
    lines = ["".join(_cell("td", text, side) for text, side in zip(row, sides, strict=True)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    below = "".join(f"<p>{escape(line)}</p>" for line in notes.splitlines())
    return (
        f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
    )


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="text-align: {side}">{escape(text)}</{tag}>'
