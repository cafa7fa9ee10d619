"""Options of `qcore quantize`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcore import _checks, _core
from qcore.formats.checkpoint.samples import Samples
from qcore.formats.checkpoint.targets.model_folder import ModelFolderTarget, quantization_config
from qcore.formats.checkpoint.targets.target import Target, target
from qcore.methods.gptq import DAMPING
from qcore.quantized_tensor import quantize

SAMPLED = ("awq", "gptq")
"""Methods that take the layers' inputs."""


@dataclass(frozen=True)
class Options:
    """Arguments of :func:`qcore.quantize`, and shell patterns of the tensors it takes (``include``, ``exclude``)."""

    bits: int = 4
    block_size: int = 64
    scheme: str = "symmetric"
    method: str = "rtn"
    scale_dtype: str = "float32"
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

    def check(self) -> None:
        """Check the options before a file is touched; the core's own words come from a weight of one element."""
        one = np.ones((1, 1), np.float32)
        _checks.choice(self.bits, {4: 4, 8: 8}, "quantize: bits")
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
        return ModelFolderTarget(inner, self.model, values)

    def open_samples(self) -> Samples | None:
        """Return the layers' inputs, if there are any."""
        return Samples(Path(self.samples)) if self.samples else None

    def of_tensor(self) -> dict[str, Any]:
        """Return the arguments of :func:`qcore.quantize`."""
        keys = ("bits", "block_size", "scheme", "method", "scale_dtype")
        return {key: getattr(self, key) for key in keys}
