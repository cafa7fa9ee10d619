"""Checks the options of :func:`qcore.torch.quantize_` and gives each layer its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qcore import _checks, _core
from qcore._options import FORM, METHOD
from qcore.linear import COMPUTE
from qcore.methods.gptq import DAMPING, check_options
from qcore.torch.conversion import patterns
from qcore.torch.conversion.layers import Layer
from qcore.torch.conversion.rules import Settings
from qcore.weight_encoding import ENCODINGS

WEIGHT_BITS: Mapping[int, int] = {2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 8: 8}
"""Widths of codes that :func:`qcore.quantize` makes."""
PLAIN_BITS: tuple[int, ...] = (4, 8)
"""Widths of weights that are no encoded ones. Convolutions have no others."""
_SCHEMES = {"symmetric": 0, "asymmetric": 0}
_METHODS = {"rtn": 0, "mse": 0, "awq": 0, "gptq": 0}
_SCALE_DTYPES = {"float32": 0, "float16": 0}
_EMBEDDING_BITS = 8
_ROTATIONS = {None: 0, "hadamard": 0, "hadamard_online": 0}
_PLAIN_ONLY = {"rotation": None, "damping": DAMPING, "act_order": False}
"""Options that an encoding does not take, and their defaults."""


def default_settings(given: Mapping[str, Any], calibration: Any) -> Settings:
    """Return the settings of layers that no pattern names.

    Args:
        given: arguments of ``quantize_`` by name, None for those of form and method that were not given.
        calibration: the argument of that name.

    Raises:
        QcoreValueError, QcoreTypeError: an option is impossible, or contradicts the encoding.
    """
    return _settings({name: value for name, value in given.items() if value is not None}, "quantize_: ", calibration)


def layer_settings(layers: Any, given: Mapping[str, Any], calibration: Any) -> dict[str, Settings | None]:
    """Return the settings for each pattern of the argument ``layers``; None where it leaves its layers.

    A pattern's encoding takes the place of what the call says of the form, and the other way round.

    Args:
        layers: the argument of that name.
        given: as for :func:`default_settings`.
        calibration: the argument of that name.

    Raises:
        QcoreValueError, QcoreTypeError: an option is unknown or impossible, or contradicts the encoding.
    """
    if layers is None:
        return {}
    if not isinstance(layers, Mapping):
        raise _core.QcoreTypeError(
            f"quantize_: layers is a {type(layers).__name__}, expected a dictionary of patterns to options: "
            "{'*.down_proj': {'bits': 8}, 'lm_head': None}"
        )
    known = dict.fromkeys(Settings.__dataclass_fields__, 0)
    options: dict[str, Settings | None] = {}
    for pattern, own in layers.items():
        where = f"quantize_: layers[{pattern!r}]"
        if not isinstance(pattern, str) or not (own is None or isinstance(own, Mapping)):
            raise _core.QcoreTypeError(f"{where} is {own!r}, expected a dictionary of options, or None to leave it")
        for name in own or ():
            _checks.choice(name, known, f"{where}: an option")
        options[pattern] = None if own is None else _settings(_merged(given, own), f"{where}: ", calibration)
    return options


def _merged(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a pattern over those of the call, without those of the call that they replace."""
    base = {name: value for name, value in given.items() if value is not None}
    if own.get("encoding") is not None:
        for name in (*FORM, *_PLAIN_ONLY):
            base.pop(name, None)
        if base.get("method") == "gptq":
            del base["method"]
    elif any(name in own for name in FORM):
        base.pop("encoding", None)
    return base | dict(own)


def _settings(given: dict[str, Any], where: str, calibration: Any) -> Settings:
    """Return the checked settings, with a plain integer as the block size."""
    name = given.get("encoding")
    method = METHOD if name is None or calibration is None else "awq"
    settings = Settings(**(FORM | {"compute": "int8", "method": method} | given))
    if name is not None:
        settings = _encoded(settings, given, where)
    _checks.choice(settings.bits, WEIGHT_BITS, f"{where}bits")
    _checks.choice(settings.compute, COMPUTE, f"{where}compute")
    _checks.choice(settings.method, _METHODS, f"{where}method")
    _checks.choice(settings.scheme, _SCHEMES, f"{where}scheme")
    _checks.choice(settings.scale_dtype, _SCALE_DTYPES, f"{where}scale_dtype")
    _checks.choice(settings.rotation, _ROTATIONS, f"{where}rotation")
    check_options(settings.damping, settings.act_order, where)
    block_size = _checks.integer(settings.block_size, f"{where}block_size")
    if block_size < 1:
        raise _core.QcoreValueError(f"{where}block_size is {block_size}, expected a positive number")
    if settings.method in ("awq", "gptq") and calibration is None:
        raise _core.QcoreValueError(
            f"{where}calibration is None, expected inputs of the model with method={settings.method!r}"
        )
    return replace(settings, block_size=block_size)


def _encoded(settings: Settings, given: Mapping[str, Any], where: str) -> Settings:
    """Return the settings with the encoding's bits and block size, if nothing contradicts it."""
    name = _encoding_name(settings.encoding, f"{where}encoding")
    about, size = ENCODINGS[name]
    for option in FORM:
        if option in given:
            raise _core.QcoreValueError(
                f"{where}{option} is {given[option]!r} and encoding {name!r}, expected one of them: {name} has codes "
                f"of {about.bits} bits in blocks of {size} and {about.scales} scales"
            )
    for option, default in _PLAIN_ONLY.items():
        if given.get(option, default) != default:
            raise _core.QcoreValueError(
                f"{where}{option} is {given[option]!r}, expected {default!r} with encoding={name!r}"
            )
    if settings.method == "gptq":
        raise _core.QcoreValueError(f"{where}method is 'gptq', expected 'rtn', 'mse' or 'awq' with encoding={name!r}")
    return replace(settings, bits=about.bits, block_size=size)


def encoding_names(value: Any) -> tuple[str, ...]:
    """Return the argument ``encoding`` of ``quantize_`` with ``target_bits``: none, one or several names, each once.

    Raises:
        QcoreValueError, QcoreTypeError: it is something else.
    """
    where = "quantize_: encoding"
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence):
        raise _core.QcoreTypeError(f"{where} is {value!r}, expected names of encodings with target_bits")
    return tuple(dict.fromkeys(_encoding_name(name, where) for name in names))


def _encoding_name(value: Any, where: str) -> str:
    """Return the value if it is the name of an encoding.

    Raises:
        QcoreValueError, QcoreTypeError: it is not.
    """
    _checks.choice(_checks.text(value, where), ENCODINGS, where)
    return str(value)


def check_gptq_options(settings: list[Settings | None]) -> None:
    """Raise QcoreValueError if options for "gptq" are given and no layer has that method."""
    given = [each for each in settings if each is not None]
    if any(each.method == "gptq" for each in given):
        return
    for each in given:
        if each.damping != DAMPING or each.act_order:
            raise _core.QcoreValueError(
                f"quantize_: damping is {each.damping:g} and act_order {each.act_order}, expected {DAMPING:g} and "
                "False without method='gptq'"
            )


def choose_settings(layers: list[Layer], options: dict[str, Settings | None], default: Settings) -> None:
    """Give each layer its settings; layers with one weight have one form and method."""
    for layer in layers:
        layer.pattern = patterns.first_match(layer.names, options)
        if layer.pattern is not None and options[layer.pattern] is None and not layer.reason:
            layer.reason, layer.asked, layer.shared = f"layers has {layer.pattern!r}: None", True, None
        of_kind = default
        if layer.rule is not None and layer.rule.kind == "Embedding" and default.encoding is None:
            of_kind = replace(default, bits=_EMBEDDING_BITS)
        layer.settings = (options[layer.pattern] if layer.pattern is not None else None) or of_kind
    for number in {layer.shared for layer in layers if layer.shared is not None}:
        group = [layer for layer in layers if layer.shared == number]
        first = min(
            group, key=lambda layer: (layer.pattern is None, layer.rule is not None and layer.rule.kind == "Embedding")
        )
        for layer in group:
            assert first.settings is not None and layer.settings is not None
            layer.settings = replace(first.settings, compute=layer.settings.compute)
    for layer in layers:
        if layer.rule is not None and layer.rule.kind in ("Conv2d", "Conv1d"):
            _widen(layer)


def _widen(layer: Layer) -> None:
    """Give a convolution the next plain width, because encoded weights are matrices."""
    settings = layer.settings
    assert settings is not None
    if settings.encoding is None and settings.bits in PLAIN_BITS:
        return
    bits = next(width for width in PLAIN_BITS if width >= settings.bits)
    asked = f"{settings.bits} bits" if settings.encoding is None else repr(settings.encoding)
    layer.notes.append(f"{bits} bits: {asked} is for matrices")
    layer.settings = replace(settings, bits=bits, encoding=None)
