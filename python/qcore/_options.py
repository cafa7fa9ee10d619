"""The values of option strings, for signatures."""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

from qcore import _core

P = ParamSpec("P")
R = TypeVar("R")

Compute = Literal["float", "int8", "int8_asym", "int16"]
"""Form that the activations get inside an operator."""

LinearCompute = Literal["float", "int8", "int8_asym", "int16", "int8_token"]
"""Form that the activations get inside a linear layer."""

IntegerCompute = Literal["int8", "int8_asym", "int16"]
"""Form of activations as codes."""

Activation = Literal["relu", "relu6", "silu", "gelu", "gelu_tanh", "tanh", "sigmoid"]
"""The function that an operator applies to its results, by name."""

Scheme = Literal["symmetric", "asymmetric"]
"""Whether blocks of a weight have offsets."""

Method = Literal["rtn", "mse", "awq", "gptq"]
"""How scales and codes are chosen: rounding to nearest, smallest squared error, the same weighed by samples, or columns
that compensate the errors of those before them."""

RangeMethod = Literal["minmax", "ema", "percentile", "mse"]
"""How a tensor's range follows from the values that were observed."""

Metric = Literal["mean_relative", "max_relative", "mean_absolute", "max_absolute"]
"""The error of a table that a fit minimizes."""

TableDtype = Literal["float16", "float32"]
"""The dtype of a table's values."""

BITS = 4
BLOCK_SIZE = 32
SCHEME: Scheme = "symmetric"
METHOD: Method = "mse"
SCALE_DTYPE = "float16"
FORM: dict[str, Any] = {"bits": BITS, "block_size": BLOCK_SIZE, "scheme": SCHEME, "scale_dtype": SCALE_DTYPE}
"""The options that say what a weight has in memory, which an encoding replaces, and their defaults.

These and METHOD are the defaults of all functions and commands. docs/choices.md says why and what they cost.
"""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OTHER_WORDS = {
    "group_size": "block_size",
    "groupsize": "block_size",
    "q_group_size": "block_size",
    "blocksize": "block_size",
    "w_bit": "bits",
    "wbits": "bits",
    "nbits": "bits",
    "num_bits": "bits",
    "sym": "scheme",
    "symmetric": "scheme",
    "zero_point": "scheme",
    "desc_act": "act_order",
    "ignore": "exclude",
    "modules_to_not_convert": "exclude",
    "skip": "exclude",
    "mode": "compute",
    **dict.fromkeys(("data", "dataset", "calib_data", "calibration_data", "calibration"), "samples"),
}
"""Words of other libraries or of other functions here, and what the option is called."""

_MODEL_WORDS = dict.fromkeys(("data", "dataset", "calib_data", "calibration_data", "samples"), "calibration")
"""The same of functions that take inputs of a model instead of a layer's."""


def named_arguments(op: str, usage: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function that says in qcore's words which argument is missing, too many or unknown.

    A call that is right costs 0.1 us more, so that functions which are called for each layer do without.

    Args:
        op: begins the texts.
        usage: how to call it; by default with the names of what it must have.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> R:
            try:
                return function(*arguments, **options)
            except TypeError:
                _check_call(function, op, usage, arguments, options)
                raise

        return call

    return decorate


def _check_call(
    function: Callable[..., Any], op: str, usage: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Raise QcoreTypeError if the arguments are not those of the function."""
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **options)
        return
    except TypeError:
        pass
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    given = arguments[len(signature.parameters) - len(parameters) :]
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    shown = [each.name if each.kind is each.POSITIONAL_OR_KEYWORD else f"{each.name}=..." for each in needed]
    usage = usage or f"{op}({', '.join(shown)})"
    told = [
        *(f"{name} = {_shown(value)}" for name, value in zip(names, given, strict=False)),
        *map("{}=".format, options),
    ]
    known = [each.name for each in parameters]
    unknown = [name for name in options if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"{close[0]}=" if close else f"one of {', '.join(known)}"
        text = f"{unknown[0]} is {_shown(options[unknown[0]])}, expected no argument of that name, but {hint}"
    elif len(given) > len(names):
        by_name = [f"{each.name}=" for each in parameters if each.kind is each.KEYWORD_ONLY]
        text = f"{len(given)} arguments are given by position, expected {usage}"
        text += f", and by name {', '.join(by_name)}" if by_name else ""
    else:
        missing = [each.name for each in needed if each.name not in (*names[: len(given)], *options)]
        twice = [name for name in names[: len(given)] if name in options]
        problem = f"{' and '.join(twice)} is given twice" if twice else f"{' and '.join(missing)} is missing"
        text = f"{problem}, expected {usage}" + (f"; given is {', '.join(told)}" if told else "")
    raise _core.QcoreTypeError(f"{op}: {text}") from None


def option_names(
    op: str, *, deprecated: dict[str, str] | None = None, positional: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function with keyword-only options.

    Old names still work with a DeprecationWarning, and so do options that are given by position, as once was possible.
    A word of another library is an error that says the name here, and so are arguments that are missing or too many, as
    of :func:`named_arguments`.

    Args:
        op: begins the texts.
        deprecated: new names by old ones.
        positional: names of the options that were positional, in their order, behind the first argument.
    """
    renamed = deprecated or {}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = function.__kwdefaults__ or {}

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> R:
            if positional and len(arguments) > 1:
                given = dict(zip(positional, arguments[1:], strict=False))
                if len(given) < len(arguments) - 1 or set(given) & set(options):
                    _check_call(function, op, "", arguments, options)
                _warn(f"{op}: {', '.join(given)} by position, expected {', '.join(f'{name}=' for name in given)}")
                arguments, options = arguments[:1], given | options
            for name in [name for name in options if name not in names]:
                new = renamed.get(name)
                if new is not None and new not in options:
                    _warn(f"{op}: {name}= is called {new}= now")
                    options[new] = options.pop(name)
                for words in (_MODEL_WORDS, _OTHER_WORDS):
                    if name in options and words.get(name) in names:
                        raise _core.QcoreTypeError(
                            f"{op}: {name} is {_shown(options[name])}, expected {words[name]}, which is its name here"
                        )
            try:
                return function(*arguments, **options)
            except TypeError:
                _check_call(function, op, "", arguments, options)
                raise

        return call

    return decorate


def _shown(value: Any) -> str:
    """Return a value for an error: itself if that is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def _warn(text: str) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=4)
