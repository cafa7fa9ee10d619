"""The public names of qcore.torch say what they are and what their parameters are.

The names from_float and from_torch keep to one meaning each.
"""

import ast
import importlib
import inspect
from pathlib import Path

import docstrings
import pytest
import torch

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


def classes_with(method):
    """Return the classes of the package whose source defines a method."""
    root = Path(qcore.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [each.name for each in getattr(node, "body", ()) if isinstance(each, ast.FunctionDef)]
            if isinstance(node, ast.ClassDef) and method in names:
                parts = path.relative_to(root.parent).with_suffix("").parts
                found.append(getattr(importlib.import_module(".".join(parts)), node.name))
    return found


def test_from_float_is_of_layers_and_from_torch_of_what_is_no_torch_module():
    """The rule of docs/torch.md."""
    layers, others = classes_with("from_float"), classes_with("from_torch")
    assert len(layers) >= 12 and len(others) >= 4 and not set(layers) & set(others)
    for kind in layers:
        parameters = list(inspect.signature(kind.from_float).parameters)
        if issubclass(kind, torch.nn.Module):
            assert parameters[0] == "module", kind
        else:
            assert kind.__module__ == "qcore.static" and "weight" in parameters, kind
    assert not [kind for kind in others if issubclass(kind, torch.nn.Module)]
    public = [getattr(qcore.torch, name) for name in qcore.torch.__all__]
    modules = [each for each in public if isinstance(each, type) and issubclass(each, torch.nn.Module)]
    assert not [kind for kind in modules if not hasattr(kind, "from_float")]
