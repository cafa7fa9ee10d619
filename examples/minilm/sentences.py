"""Real sentences that every Python has: those of its own language reference."""

from __future__ import annotations

import re
from pydoc_data.topics import topics


def sentences(count: int) -> list[str]:
    """Return distinct sentences of 40 to 300 characters, evenly from the whole reference."""
    found: dict[str, None] = {}
    for topic in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[topic]):
            if re.search(r"::=|>>>|^\s{6,}|[|+]-", paragraph) or "***" in paragraph:
                continue
            text = re.sub(r"\s+", " ", re.sub(r"[*\"`]", "", paragraph)).strip()
            for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", text):
                if 40 <= len(sentence) <= 300 and sentence[0].isupper() and sentence[-1] in ".!?":
                    found[sentence] = None
    everything = list(found)
    if len(everything) < count:
        raise SystemExit(f"only {len(everything)} sentences were found, expected {count}")
    return [everything[i * len(everything) // count] for i in range(count)]
