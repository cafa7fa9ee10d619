"""The public names of qcore.jax say what they are and what their parameters are."""

import docstrings

import qcore.jax
import qcore.lut
from qcore.jax import lut


def complaints(module, names):
    for name in names:
        thing = getattr(module, name)
        if callable(thing):
            yield from docstrings.missing(f"{module.__name__}.{name}", thing)


def test_public_names_are_documented():
    assert not list(complaints(qcore.jax, qcore.jax.__all__))


def test_functions_of_tables_are_documented():
    own = [name for name, thing in vars(lut).items() if getattr(thing, "__module__", "") == lut.__name__]
    own = {name for name in own if not name.startswith("_")}
    assert {"apply", "rms_norm", "softmax"} <= own
    assert not list(complaints(lut, sorted(own | set(qcore.lut.names()))))
