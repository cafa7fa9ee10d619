"""The public names of qcore.torch say what they are and what their parameters are."""

import docstrings

import qcore.torch
from qcore.torch import operators


def test_public_names_are_documented():
    things = {f"qcore.torch.{name}": getattr(qcore.torch, name) for name in qcore.torch.__all__}
    things = {name: thing for name, thing in things.items() if callable(thing)}
    for name in ("linear", "conv2d", "lut", "gru"):
        things[f"qcore.torch.operators.{name}"] = getattr(operators, name)._init_fn
    complaints = [each for name, thing in things.items() for each in docstrings.missing(name, thing)]
    assert not complaints, "\n".join(complaints)
