"""The operators that can be measured, and how the results of each are shown."""

from __future__ import annotations

import qcore

from . import overhead
from .awq import summary as awq
from .conv import summary as conv
from .decoder import command as decoder
from .gpu.summary import OPERATORS as ON_DEVICES
from .linear import summary as linear
from .lut import summary as lut
from .models import decode as models
from .quantize import summary as quantize
from .recurrent import summary as recurrent
from .results import Document
from .static import summary as static
from .tables import Operator

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        *(quantize.OPERATOR, linear.OPERATOR, conv.OPERATOR, static.OPERATOR),
        *(recurrent.GRU, recurrent.LSTM, lut.OPERATOR, awq.OPERATOR),
    )
}
"""Those of the CPU whose implementations are measured in turn."""


_OTHERS = {room.OPERATOR.name: room.OPERATOR for room in (decoder, models, overhead)}


def operator_of(document: Document) -> Operator:
    """Return how a document is shown. Raises QcoreValueError if nothing shows it."""
    known = ON_DEVICES if document.device == "cuda" else OPERATORS | _OTHERS
    if document.operator not in known:
        raise qcore.QcoreValueError(
            f"benchmarks report: the file holds {document.operator!r} on {document.device}, expected one of "
            f"{', '.join(known)}"
        )
    return known[document.operator]
