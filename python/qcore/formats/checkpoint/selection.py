"""Which tensors of a model are quantized.

By default: float32, float16 and bfloat16 tensors of two or four axes, but for embeddings, norms and biases, which are
told by their names. A name is split at dots and underscores; the words below keep it in float.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import FLOATING, Section

_EMBEDDING = re.compile(r"embed(ding|dings|der)?|embd|emb|wte|wpe|shared|[a-z]*embeddings?")
_NORM = re.compile(r"(layer|rms|batch|group|instance)?norms?\d*|ln\d*|bn\d*|[a-z]*layernorm\d*")
_BIAS = re.compile(r"bias(es)?")


@dataclass(frozen=True)
class Choice:
    """Whether a tensor is quantized, and if not, why."""

    quantize: bool
    reason: str


def choose(
    section: Section,
    name: str,
    include: Sequence[str],
    exclude: Sequence[str],
    layers: Collection[str] | None = None,
) -> Choice:
    """Choose the tensors to quantize.

    They are the names of ``layers`` if these are given, else those that match a pattern of ``include``, else those of
    the default rule; never those that match one of ``exclude``, nor tensors of another dtype or number of axes.
    """
    if section.dtype not in FLOATING:
        return Choice(False, f"{section.dtype}")
    if len(section.shape) not in (2, 4):
        return Choice(False, f"{len(section.shape)} ax{'is' if len(section.shape) == 1 else 'es'}")
    if 0 in section.shape:
        return Choice(False, "empty")
    if matching(name, exclude):
        return Choice(False, "--exclude")
    if layers is not None and name not in layers:
        return Choice(False, "no layer of the model that is quantized")
    if include:
        return Choice(True, "") if matching(name, include) else Choice(False, "not in --include")
    if layers is not None:
        return Choice(True, "")
    for word in re.split(r"[._]", name.lower()):
        for kind, pattern in (("embedding", _EMBEDDING), ("norm", _NORM), ("bias", _BIAS)):
            if pattern.fullmatch(word):
                return Choice(False, kind)
    return Choice(True, "")


def matching(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether a name matches one of the shell patterns; a * also stands for dots."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(names: Iterable[str], include: Sequence[str], exclude: Sequence[str]) -> None:
    """Raise QcoreValueError if a pattern matches no tensor."""
    names = list(names)
    for option, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise _core.QcoreValueError(f"quantize: --{option} {pattern!r} matches none of {len(names)} tensors")
