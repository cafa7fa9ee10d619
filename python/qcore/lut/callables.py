"""Any Python callable as a function of float64 arrays."""

from __future__ import annotations

import ast
import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from qcore import _core

Array = np.ndarray[Any, Any]


def evaluate(f: Any, x: Array) -> Array:
    """Return ``f(x)``, or ``f`` of each number where it doesn't take arrays.

    Args:
        f: a callable; of one number, it may raise OverflowError (infinity) and ValueError (NaN) as Python's math does.
        x: float64 [n].

    Returns:
        float64 [n], infinities and NaN included.

    Raises:
        QcoreTypeError, QcoreValueError: what ``f`` returns are not n real numbers, or ``f`` raised something else.
    """
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(f(x.copy()))
    except (TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        return _one_by_one(f, x, error)
    if found.dtype.kind not in "fiub":
        raise _core.QcoreTypeError(f"lut fit: f returned dtype {found.dtype}, expected real numbers")
    if found.shape != x.shape:
        raise _core.QcoreValueError(
            f"lut fit: f returned shape {list(found.shape)} for an array of shape {list(x.shape)}, expected the same"
        )
    return found.astype(np.float64)


def _one_by_one(f: Any, x: Array, refused: Exception) -> Array:
    found = np.empty(len(x))
    for i, at in enumerate(x.tolist()):
        try:
            found[i] = f(at)
        except OverflowError:
            found[i] = math.inf
        except ValueError as error:
            if "domain" not in str(error) and "range" not in str(error):
                raise _core.QcoreValueError(f"lut fit: f({at!r}) raised ValueError: {error}") from error
            found[i] = math.nan
        except ZeroDivisionError:
            found[i] = math.inf
        except Exception as error:
            raise _core.QcoreTypeError(
                f"lut fit: f takes neither an array ({type(refused).__name__}: {refused}) nor a number, "
                f"{at!r} ({type(error).__name__}: {error})"
            ) from error
    return found


_FUNCTIONS = {
    name: getattr(np, name)
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "abs", "sign", "square", "floor"),
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"),
        *("minimum", "maximum", "clip", "where", "ceil", "rint", "reciprocal", "hypot"),
    )
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant),
    *(ast.operator, ast.unaryop, ast.cmpop),
)


def from_text(text: str) -> Callable[[Array], Any]:
    """Return the function that a command line names.

    Args:
        text: an expression of x, such as "x * tanh(x)", or "module:function", whose module is imported; it may lie in
            the current folder.

    Raises:
        QcoreValueError: it is neither, or it has other names or operators.
    """
    module, colon, name = text.partition(":")
    if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return _imported(module, name)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise _unknown(text, f"{error.args[0]}") from None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    for node in ast.walk(tree):
        is_number = not isinstance(node, ast.Constant) or type(node.value) in (int, float)
        is_call = not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and not node.keywords)
        if not isinstance(node, _NODES) or not is_number or not is_call:
            raise _unknown(text, f"{type(node).__name__} is not allowed")
    known = {"x", *_CONSTANTS, *_FUNCTIONS}
    if "x" not in names or names - known or called - set(_FUNCTIONS):
        wrong = sorted(names - known) or sorted(called - set(_FUNCTIONS))
        raise _unknown(text, f"{wrong[0]} is not known" if wrong else "it has no x")
    code = compile(tree, "<expression>", "eval")

    def expression(x: Array) -> Any:
        # Safe, because the checks above admit x, numbers and functions of NumPy only.
        return eval(code, {"__builtins__": {}} | _FUNCTIONS | _CONSTANTS, {"x": x})

    return expression


def _imported(module: str, name: str) -> Callable[[Array], Any]:
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise _unknown(f"{module}:{name}", str(error)) from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise _unknown(f"{module}:{name}", f"{module} has no function {name}")
    function: Callable[[Array], Any] = found
    return function


def _unknown(text: str, reason: str) -> Exception:
    from qcore.lut.functions import FUNCTIONS

    return _core.QcoreValueError(
        f"lut fit: f is {text!r} ({reason}), expected an expression of x with NumPy's functions, module:function, or "
        f"one of {', '.join(FUNCTIONS)}"
    )
