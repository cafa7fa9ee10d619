"""Defines QcoreConfig: the options that quantize a model, and their form in config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from qcore import _checks, _core, _options
from qcore._options import FORM, Compute, Method, Scheme
from qcore.formats.checkpoint.layout import FORMAT
from qcore.linear import COMPUTE
from qcore.weight_encoding import ENCODINGS

METHOD = "qcore"
"""``quant_method`` in config.json."""


class QuantMethod(StrEnum):
    """Names the method as an enumeration, because diffusers reads its ``value``."""

    QCORE = METHOD


_CHOICES: dict[str, Mapping[Any, Any]] = {
    "bits": dict.fromkeys((2, 3, 4, 5, 6, 8)),
    "scheme": {"symmetric": 0, "asymmetric": 0},
    "method": {"rtn": 0, "mse": 0, "awq": 0, "gptq": 0},
    "scale_dtype": {"float16": 0, "float32": 0},
    "compute": COMPUTE,
    "encoding": ENCODINGS,
}


@dataclass(frozen=True)
class LayerOptions:
    """Holds the options of one layer: those of :func:`qcore.quantize`, the compute mode, and the encoding if any.

    With an encoding, bits, block_size and scheme are its own, and scale_dtype has no part in it.
    """

    bits: int
    block_size: int
    scheme: Scheme
    method: Method
    scale_dtype: str
    compute: Compute
    encoding: str | None = None


class QcoreConfig(QuantizationConfigMixin):  # type: ignore[misc, unused-ignore]
    """Specifies how qcore quantizes a model, or runs one that is quantized already.

    Args:
        bits: 2, 3, 4, 5, 6 or 8; 4 by default. Convolutions have the next of 4 and 8.
        block_size: elements along K that share a scale; 32 by default.
        scheme: "symmetric", the default, or "asymmetric".
        method: "rtn" or "mse", as for :func:`qcore.quantize`. "awq" and "gptq" are for models that are quantized
            already: they need samples, ``qcore quantize --method awq --samples FILE``.
        scale_dtype: "float16", the default, or "float32", the type of scales and offsets.
        compute: "int8", "int8_asym", "int16" or "float", as for :func:`qcore.linear`. None is "int8"; for files of
            other programs it is what they say of activations, or "float" where they quantize weights only.
        modules_to_not_convert: names or shell patterns of modules that stay in floating point. A pattern stands for
            a module's full name or the end of it, and for everything inside: "lm_head", "mlp.gate", "model.layers.0".
        layers: other options for the modules that match a pattern: ``{"*.down_proj": {"bits": 8}}``. Of several
            patterns the first counts. An encoding takes the place of what the call says of bits, block_size, scheme
            and scale_dtype; any of these takes that of the call's encoding.
        embeddings: False leaves embeddings, and heads that share their weight, in floating point.
        encoding: a name of :func:`qcore.quantize_encoded`, such as "q4_k" or "nvfp4", in the place of bits, block_size,
            scheme and scale_dtype. Convolutions have the next of 4 and 8 bits in blocks of that size.

    For a model that is quantized already, ``compute`` and ``layers`` with ``compute`` count; all other options are
    those of its files. What ``layers`` gave then is not saved with the model.

    Raises:
        QcoreValueError, QcoreTypeError: an option is unknown or impossible.
    """

    def __init__(
        self,
        bits: int | None = None,
        block_size: int | None = None,
        scheme: Scheme | None = None,
        method: Method = _options.METHOD,
        scale_dtype: str | None = None,
        compute: Compute | None = None,
        modules_to_not_convert: Sequence[str] | None = None,
        layers: Mapping[str, Mapping[str, Any]] | None = None,
        embeddings: bool = True,
        encoding: str | None = None,
        **unknown: Any,
    ) -> None:
        self.quant_method = QuantMethod.QCORE
        _check_saved(unknown)
        form = {"bits": bits, "block_size": block_size, "scheme": scheme, "scale_dtype": scale_dtype}
        given = {name: value for name, value in form.items() if value is not None}
        given |= {} if encoding is None else {"encoding": encoding}
        _check_options(given, "QcoreConfig")
        form = FORM | _own_form(encoding) | given
        self.bits, self.block_size, self.scheme = form["bits"], form["block_size"], form["scheme"]
        self.method, self.scale_dtype, self.encoding = method, form["scale_dtype"], encoding
        self.compute = "int8" if compute is None else compute
        self._compute_given = compute is not None
        _check_options({"method": method, "compute": self.compute}, "QcoreConfig")
        self.modules_to_not_convert = _patterns(modules_to_not_convert)
        self.layers = _layers(layers)
        if not isinstance(embeddings, bool):
            raise _core.QcoreTypeError(f"QcoreConfig: embeddings is {embeddings!r}, expected True or False")
        self.embeddings = embeddings
        self._files: dict[str, Any] | None = None
        self._computes: dict[str, str] = {}  # by pattern, beside what ``layers`` says of how layers are stored

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in LayerOptions.__dataclass_fields__}

    def _own(self, name: str) -> Mapping[str, Any]:
        own = next((own for pattern, own in self.layers.items() if matches(name, pattern)), {})
        compute = next((compute for pattern, compute in self._computes.items() if matches(name, pattern)), None)
        return own if compute is None else {**own, "compute": compute}

    def asks_compute(self, name: str) -> bool:
        """Return whether the compute mode of a module was given, for the model or for this module.

        Args:
            name: full name of a module, with dots.
        """
        return self._compute_given or "compute" in self._own(name)

    def of_layer(self, name: str) -> LayerOptions:
        """Return the options of the module of that name.

        Args:
            name: full name of a module, with dots.
        """
        other = self._own(name)
        options = self._options()
        if other.get("encoding") is not None:
            options |= _own_form(other["encoding"])
        elif self.encoding is not None and any(each in other for each in FORM):
            options |= FORM | {"encoding": None}
        return LayerOptions(**(options | dict(other)))

    def leaves(self, name: str) -> str:
        """Return the pattern of ``modules_to_not_convert`` that keeps a module in floating point, or "".

        Args:
            name: full name of a module, with dots.
        """
        return next((pattern for pattern in self.modules_to_not_convert or () if matches(name, pattern)), "")

    def check_patterns(self, names: Sequence[str]) -> None:
        """Check that each pattern means one of the modules.

        Args:
            names: full names of a model's modules.

        Raises:
            QcoreValueError: a pattern matches none of them.
        """
        for option, patterns in (
            ("modules_to_not_convert", self.modules_to_not_convert or ()),
            ("layers", (*self.layers, *self._computes)),
        ):
            for pattern in patterns:
                if not any(matches(name, pattern) for name in names):
                    raise _core.QcoreValueError(
                        f"QcoreConfig: {option} has {pattern!r}, which matches none of the model's {len(names)} "
                        "modules, expected a name or a shell pattern of one or more of them"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Return what config.json holds."""
        left = tuple(FORM) if self.encoding is not None else ("encoding",)
        options = {name: value for name, value in self._options().items() if name not in left}
        found = {"quant_method": METHOD, "format": FORMAT} | options
        found["modules_to_not_convert"] = self.modules_to_not_convert
        found["layers"] = {pattern: dict(options) for pattern, options in self.layers.items()}
        found["embeddings"] = self.embeddings
        return found

    @property
    def compute_given(self) -> bool:
        """Return whether ``compute`` was given."""
        return self._compute_given

    @classmethod
    def of_files(cls, values: Mapping[str, Any], given: QcoreConfig | None) -> QcoreConfig:
        """Return the options of a model that is quantized already.

        Args:
            values: ``quantization_config`` of its files, of qcore or of another method.
            given: what from_pretrained was called with, of which the compute modes count.
        """
        if values.get("quant_method") == METHOD:
            found = cls(**values)
        else:
            size = values.get("group_size")
            found = cls(bits=values.get("bits", 4), block_size=size if isinstance(size, int) and size > 0 else 32)
            found._files = dict(values)
            found.compute = "float"  # for weights whose files say nothing about activations
        if given is not None:
            if given.compute_given:
                found.compute, found._compute_given = given.compute, True
                for options in found.layers.values():
                    options.pop("compute", None)
            found._computes = {
                pattern: options["compute"] for pattern, options in given.layers.items() if "compute" in options
            }
        return found

    def files(self) -> dict[str, Any]:
        """Return the ``quantization_config`` of the files that the model is loaded from."""
        return self._files or self.to_dict()


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a module's full name, the end of it, or a module that contains it."""
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, form) for form in (pattern, f"*.{pattern}", f"{pattern}.*", f"*.{pattern}.*"))


def _check_saved(unknown: dict[str, Any]) -> None:
    """Remove the entries that :meth:`QcoreConfig.to_dict` adds from ``unknown`` and refuse all others."""
    method, version = unknown.pop("quant_method", METHOD), unknown.pop("format", FORMAT)
    if method != METHOD:
        raise _core.QcoreValueError(f"QcoreConfig: quant_method is {method!r}, expected {METHOD!r}")
    if version != FORMAT:
        raise _core.QcoreValueError(f"QcoreConfig: format is {version!r}, expected {FORMAT!r}")
    if unknown:
        raise _core.QcoreValueError(
            f"QcoreConfig: {next(iter(unknown))!r} is no option, expected bits, block_size, scheme, method, "
            "scale_dtype, compute, modules_to_not_convert, layers, embeddings or encoding"
        )


def _check_options(options: Mapping[str, Any], where: str) -> None:
    for name, value in options.items():
        at = f"{where}: {name}"
        if name in _CHOICES:
            _checks.choice(value, _CHOICES[name], at)
        elif name != "block_size":
            names = ", ".join(LayerOptions.__dataclass_fields__)
            raise _core.QcoreValueError(f"{at} is no option of a layer, expected {names}")
        elif _checks.integer(value, at) < 1:
            raise _core.QcoreValueError(f"{at} is {value}, expected a positive integer")
    if "encoding" in options:
        for name in FORM:
            if name in options:
                raise _core.QcoreValueError(
                    f"{where}: {name} is {options[name]!r} and encoding {options['encoding']!r}, expected one of them"
                )


def _own_form(encoding: str | None) -> dict[str, Any]:
    """Return what an encoding says of the form of a weight; nothing without one."""
    if encoding is None:
        return {}
    about, size = ENCODINGS[encoding]
    return {"bits": about.bits, "block_size": size, "scheme": "symmetric" if about.offsets is None else "asymmetric"}


def _patterns(value: Any) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str) or not all(isinstance(each, str) and each for each in value):
        raise _core.QcoreTypeError(f"QcoreConfig: modules_to_not_convert is {value!r}, expected a list of names")
    return list(value)


def _layers(value: Any) -> dict[str, dict[str, Any]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _core.QcoreTypeError(f"QcoreConfig: layers is {value!r}, expected a dictionary of patterns")
    for pattern, options in value.items():
        if not isinstance(options, Mapping):
            raise _core.QcoreTypeError(
                f"QcoreConfig: layers[{pattern!r}] is {options!r}, expected a dictionary of options: "
                "modules_to_not_convert leaves a module in floating point"
            )
        _check_options(options, f"QcoreConfig: layers[{pattern!r}]")
    return {pattern: dict(options) for pattern, options in value.items()}
