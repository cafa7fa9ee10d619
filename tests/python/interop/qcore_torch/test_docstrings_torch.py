"""The public names of qcore.torch say what they are and what their parameters are."""

import docstrings
import pytest

import qcore.torch
import qcore.torch.parallel
from qcore.torch import operators


@pytest.mark.parametrize("module", [qcore.torch, qcore.torch.parallel])
def test_public_names_are_documented(module):
    things = {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    complaints = [each for name, thing in things.items() if callable(thing) for each in docstrings.missing(name, thing)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("name", ["linear", "conv2d", "lut", "gru", "lstm"])
def test_operators_are_documented(name):
    complaints = list(docstrings.missing(f"qcore.torch.operators.{name}", getattr(operators, name).body))
    assert not complaints, "\n".join(complaints)
