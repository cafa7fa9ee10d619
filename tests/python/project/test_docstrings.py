"""Check that docstrings of public names describe every parameter and the errors.

ruff checks their form. qcore.torch: interop/qcore_torch/test_docstrings_torch.py.
"""

import importlib

import docstrings
import pytest

from qcore import QuantizedTensor
from qcore.formats import Checkpoint
from qcore.gru import QuantGRU
from qcore.lstm import QuantLSTM
from qcore.lut import Table

MODULES = (
    "qcore",
    "qcore.awq",
    "qcore.decoder",
    "qcore.formats",
    "qcore.gru",
    "qcore.lstm",
    "qcore.lut",
    "qcore.static",
)
MADE_ELSEWHERE = (Checkpoint, QuantGRU, QuantLSTM, QuantizedTensor, Table)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_documented(module):
    package = importlib.import_module(module)
    assert package.__doc__
    complaints = [
        complaint
        for name in package.__all__
        if callable(getattr(package, name))
        for complaint in docstrings.missing(f"{module}.{name}", getattr(package, name), made_elsewhere=MADE_ELSEWHERE)
    ]
    assert not complaints, "\n".join(complaints)


def test_what_is_missing_is_seen():
    class Silent:
        def __init__(self, a):
            pass

    def half(x, y, *, z):
        """Something.

        Args:
            x, y: numbers; z: no entry.

        Returns:
            z: neither.
        """

    assert list(docstrings.missing("Silent", Silent)) == [
        "Silent has no docstring",
        "Silent says nothing about its parameter a",
    ]
    assert list(docstrings.missing("half", half)) == [
        "half says nothing about its parameter z",
        "half says nothing about errors",
    ]
    Silent.__module__ = "qcore.somewhere"
    Silent.size = property(lambda self: 1)
    assert "Silent.size has no docstring" in list(docstrings.missing("Silent", Silent))
