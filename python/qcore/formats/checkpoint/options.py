"""Options of `qcore quantize`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcore import _checks, _core
from qcore._options import BITS, BLOCK_SIZE, FORM, METHOD, SCALE_DTYPE, SCHEME
from qcore.formats.checkpoint.samples import Samples
from qcore.formats.checkpoint.targets.model_folder import ModelFolderTarget, is_model_folder, quantization_config
from qcore.formats.checkpoint.targets.target import FORMATS, Target, target
from qcore.methods.gptq import DAMPING
from qcore.quantized_tensor import quantize
from qcore.weight_encoding import ENCODINGS, WeightEncoding

_BITS = {2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 8: 8}
_PLAIN_BITS = (4, 8)
NAMES = tuple(ENCODINGS)
"""Encodings that the command line knows."""
SAMPLED = ("awq", "gptq")
"""Methods that take the layers' inputs."""


_SUFFIXES = {".safetensors": "qcore", ".gguf": "gguf", ".onnx": "onnx"}
_UNWRITTEN = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".npz", ".npy", ".h5", ".json", ".mlx", ".tflite")
"""Suffixes of files that no format of the command writes."""


def format_of(output: Path, format: str | None, source: Path) -> str:
    """Return the format of an output by its suffix and by what was given.

    Args:
        output: the file or folder to write.
        format: the option's value; None if it wasn't given.
        source: what is quantized. The name of a folder of transformers may have a dot anywhere.

    Raises:
        QcoreValueError: the suffix is that of another format, of a kind of file that isn't written, or not known.
    """
    if format is not None:
        _checks.choice(format, dict.fromkeys(FORMATS), "quantize: --format")
    suffix = output.suffix.lower()
    unknown = suffix not in ("", *_SUFFIXES) and format is None and not is_model_folder(source)
    if suffix in _UNWRITTEN or unknown:
        raise _core.QcoreValueError(
            f"quantize: OUT is {str(output)!r}, expected a name that ends with .safetensors, .gguf or .onnx, or "
            f"that of a folder{'' if suffix in _UNWRITTEN else ', or --format'}"
        )
    told = _SUFFIXES.get(suffix)
    if format is None:
        return told or "qcore"
    if told is not None and format != told:
        raise _core.QcoreValueError(
            f"quantize: OUT is {str(output)!r} and --format is {format}, expected --format {told} or none with "
            f"{suffix}, or another name"
        )
    return format


@dataclass(frozen=True)
class Options:
    """Holds arguments of :func:`qcore.quantize`, and shell patterns of tensors (``include``, ``exclude``)."""

    bits: int = BITS
    block_size: int = BLOCK_SIZE
    scheme: str = SCHEME
    method: str = METHOD
    scale_dtype: str = SCALE_DTYPE
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    format: str = "qcore"
    """Format of the output."""
    model: str = ""
    """The input's folder, if the output is a folder of transformers."""
    layers: tuple[str, ...] | None = None
    """The weights of the model's layers, which take the place of the rule of names."""
    left: tuple[str, ...] = ()
    """Modules of the model that could be quantized and aren't."""
    experts: tuple[tuple[str, str], ...] = ()
    """Tensors [E, N, K] of experts in the input, and the names that the weights of single experts get, with "{}"."""
    samples: str = ""
    """The file with the layers' inputs, for methods "awq" and "gptq"."""
    damping: float = DAMPING
    """For method "gptq", as of :func:`qcore.quantize`."""
    act_order: bool = False
    encoding: str = ""
    """A name of :func:`qcore.quantize_encoded`, in the place of bits, block_size, scheme and scale_dtype."""

    @classmethod
    def given(
        cls,
        *,
        bits: int | None,
        block_size: int | None,
        scheme: str | None,
        scale_dtype: str | None,
        method: str | None,
        encoding: str | None,
        **others: Any,
    ) -> Options:
        """Return the options of a command line, on which None is what was not given.

        Raises:
            QcoreValueError: there is no such encoding, or another option contradicts it.
        """
        form = {"bits": bits, "block_size": block_size, "scheme": scheme, "scale_dtype": scale_dtype}
        known: dict[str, Any] = {name: value for name, value in form.items() if value is not None}
        if method is not None:
            known["method"] = method
        if encoding is None:
            return cls(**known, **others)
        about, size = _checks.choice(encoding, ENCODINGS, "quantize: encoding")
        for name in form:
            if name in known:
                raise _core.QcoreValueError(
                    f"quantize: --{name.replace('_', '-')} {known[name]} is given with --encoding {encoding}, expected "
                    f"one of them: {encoding} has codes of {about.bits} bits in blocks of {size} and {about.scales} "
                    "scales"
                )
        scheme = "symmetric" if about.offsets is None else "asymmetric"
        return cls(bits=about.bits, block_size=size, scheme=scheme, encoding=encoding, **known, **others)

    def check(self) -> None:
        """Check the options before a file is touched; the core's own words come from a weight of one element."""
        one = np.ones((1, 1), np.float32)
        _checks.choice(self.bits, _BITS, "quantize: bits")
        if self.encoding and self.method == "gptq":
            raise _core.QcoreValueError(
                f"quantize: method is 'gptq', expected 'rtn', 'mse' or 'awq' with --encoding {self.encoding}"
            )
        if self.format != "qcore" and (self.encoding or self.bits not in _PLAIN_BITS):
            raise _core.QcoreValueError(
                f"quantize: --format {self.format} with {self.form}, expected --format qcore, or --bits 4 or 8: other "
                "formats are written with these widths only"
            )
        needs = self.method in SAMPLED
        quantize(
            one, samples=one if needs else None, damping=self.damping, act_order=self.act_order, **self.of_tensor()
        )
        if needs != bool(self.samples):
            raise _core.QcoreValueError(
                f"quantize: --samples is {'given' if self.samples else 'missing'} and method is {self.method!r}, "
                "expected a file with the layers' inputs for --method awq and gptq and for no other"
            )
        self.target()

    def target(self) -> Target:
        """Return the output's layout."""
        inner = target(
            format=self.format,
            bits=self.bits,
            block_size=self.block_size,
            scheme=self.scheme,
            scale_dtype=self.scale_dtype,
        )
        if not self.model:
            return inner
        values = quantization_config(format=self.format, left=self.left, **self.of_tensor())
        if self.weight_encoding() is not None:  # the configuration describes plain weights only
            values = {name: value for name, value in values.items() if name not in FORM}
        return ModelFolderTarget(inner, self.model, values)

    @property
    def form(self) -> str:
        """The bits or the encoding of the written weights, as the command line prints it."""
        return self.encoding or f"{self.bits} bits"

    def weight_encoding(self) -> WeightEncoding | None:
        """Return the encoding of the weights, without a tensor scale; None for plain ones of 4 and 8 bits."""
        if self.encoding:
            return ENCODINGS[self.encoding][0]
        if self.bits in _PLAIN_BITS:
            return None
        form = {"bits": self.bits, "scheme": self.scheme, "scale_dtype": self.scale_dtype}
        return quantize(np.ones((1, 1), np.float32), block_size=1, **form).encoding  # type: ignore[arg-type]

    def open_samples(self) -> Samples | None:
        """Return the layers' inputs, if there are any."""
        return Samples(Path(self.samples)) if self.samples else None

    def of_tensor(self) -> dict[str, Any]:
        """Return the arguments of :func:`qcore.quantize`."""
        keys = ("bits", "block_size", "scheme", "method", "scale_dtype")
        return {key: getattr(self, key) for key in keys}
