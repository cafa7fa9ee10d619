"""Any Python callable as a function of float64 arrays."""

from __future__ import annotations

import math
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
