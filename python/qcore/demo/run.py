"""Measure the model in each configuration: accuracy on the test images, weight bytes, time per image."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

import qcore

from .data import Digits, Floats, load
from .model import Model
from .operators import FixedGruOperators, FloatOperators, Operators, QcoreOperators, StaticOperators

BLOCK_SIZE = 32
DEFAULT_BATCH = 64
DEFAULT_REPEATS = 7
CALIBRATION_IMAGES = 64
"""How many of the test images choose the formats of integers, without their labels."""


@dataclass(frozen=True)
class Measurement:
    """One configuration over all test images."""

    name: str
    quantized: str  # which layers' weights: "none", "GRU", "all" (per block) or "all, static"
    kernel: str  # what computed the last product
    correct: int
    same_as_float: int  # predictions equal to the float model's, right or wrong
    logit_error: float  # rms difference from the float model's logits, relative to their own rms
    weight_count: int
    weight_bytes: int
    microseconds_per_image: float

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.weight_bytes / self.weight_count


@dataclass(frozen=True)
class Result:
    """All configurations, the float reference first, and the conditions they ran under."""

    measurements: list[Measurement]
    images: int
    batch: int
    repeats: int
    threads: int
    table_kernel: str  # what looked activations up
    gru_kernel: str  # what ran qcore.gru
    conv_kernel: str  # what ran qcore.conv2d


def configurations() -> list[tuple[str, Operators]]:
    """Return the name and the operators of each configuration; the float reference comes first."""
    return [
        ("float", FloatOperators()),
        ("tables", FloatOperators(tables=True)),
        ("GRU int8", FixedGruOperators(8)),
        ("GRU int16", FixedGruOperators(16)),
        ("static", StaticOperators()),
        ("8-bit", QcoreOperators(8, BLOCK_SIZE)),
        ("4-bit", QcoreOperators(4, BLOCK_SIZE)),
        ("4-bit, mse", QcoreOperators(4, BLOCK_SIZE, method="mse")),
    ]


def _quantized(operators: Operators) -> str:
    if isinstance(operators, StaticOperators):
        return "all, static"
    if isinstance(operators, FixedGruOperators):
        return "GRU"
    return "none" if isinstance(operators, FloatOperators) else "all"


def _product_kernel(operators: Operators) -> str:
    """Return the name of the kernel that computed the last product."""
    if isinstance(operators, StaticOperators):
        return qcore.last_kernel("static")
    return "NumPy" if isinstance(operators, FloatOperators) else qcore.last_kernel("linear")


def logits(model: Model, images: Floats, batch: int) -> Floats:
    """Images [M, 1, 8, 8] -> [M, 10], computed `batch` images at a time."""
    return np.concatenate([model(images[start : start + batch]) for start in range(0, len(images), batch)])


def relative_error(values: Floats, reference: Floats) -> float:
    return float(np.sqrt(np.square(values - reference).mean() / np.square(reference).mean()))


def run(batch: int = DEFAULT_BATCH, repeats: int = DEFAULT_REPEATS, digits: Digits | None = None) -> Result:
    """Quantize the shipped model and put every test image through each configuration."""
    digits = digits or load()
    named = configurations()
    models = [Model(digits.weights, operators) for _, operators in named]
    for model in models:
        model.calibrate(digits.images[:CALIBRATION_IMAGES])

    outputs: list[Floats] = []
    kernels: list[str] = []
    # This first pass also warms every path up for the timing below.
    for (_, operators), model in zip(named, models, strict=True):
        outputs.append(logits(model, digits.images, batch))
        kernels.append(_product_kernel(operators))
    table_kernel, gru_kernel, conv_kernel = (qcore.last_kernel(operator) for operator in ("lut", "gru", "conv2d"))

    predictions = [output.argmax(axis=1) for output in outputs]  # [M] each

    # Each round times all configurations, so that a busy moment of the machine does not fall on one of them alone.
    seconds: list[list[float]] = [[] for _ in models]
    for _ in range(repeats):
        for model, samples in zip(models, seconds, strict=True):
            start = time.perf_counter()
            logits(model, digits.images, batch)
            samples.append(time.perf_counter() - start)

    measurements = [
        Measurement(
            name=name,
            quantized=_quantized(operators),
            kernel=kernels[i],
            correct=int((predictions[i] == digits.labels).sum()),
            same_as_float=int((predictions[i] == predictions[0]).sum()),
            logit_error=relative_error(outputs[i], outputs[0]),
            weight_count=operators.weight_count,
            weight_bytes=operators.weight_bytes,
            microseconds_per_image=1e6 * statistics.median(seconds[i]) / len(digits.labels),
        )
        for i, (name, operators) in enumerate(named)
    ]
    threads = qcore.info()["threads"]
    return Result(measurements, len(digits.labels), batch, repeats, threads, table_kernel, gru_kernel, conv_kernel)
