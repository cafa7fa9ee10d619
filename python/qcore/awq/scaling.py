"""Scaling of input channels before quantization, as in AWQ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _core
from qcore.methods.samples import float_samples
from qcore.quantized_tensor import QuantizedTensor, quantize

_SAMPLES = 2048  # rows that decide; more change little and cost time


@dataclass(frozen=True)
class AwqScales:
    """Holds the result of :func:`awq_scales`.

    Attributes:
        scales: float32 [K]. Input channels are divided by them, columns of the weights have been multiplied.
        weights: the quantized ``weight * scales``, one for each layer.
        exponent: the chosen one of mean(|x|) ** exponent; 0 means that no scaling was better.
        error: squared error of all layers' outputs over the samples, relative to the outputs.
        unscaled_error: the same with all scales 1.
    """

    scales: npt.NDArray[np.float32]
    weights: list[QuantizedTensor]
    exponent: float
    error: float
    unscaled_error: float


def awq_scales(
    weights: Sequence[Any], samples: Any, *, steps: int = 20, clip: bool = True, **options: Any
) -> AwqScales:
    """Return the scales of the input channels of layers that share an input, and the layers quantized with them.

    Channels with large inputs matter most; multiplied by a scale above 1 their weights lose less, and the input is
    divided by it in return: fold the division into what makes the input, a norm's weight and bias or the rows of the
    linear layer before (:func:`fold_scales`). The scales are ``mean(|x|) ** exponent`` with the exponent, of 0,
    1/steps, ..., 1, that has the smallest error of the layers' outputs over the samples (Lin et al., "AWQ:
    Activation-aware Weight Quantization", 2023).

    Args:
        weights: floating-point arrays [N, K], one or more layers with the same input.
        samples: the input, numbers [M, K].
        steps: of the grid of exponents.
        clip: whether each block's clipping is searched too (``method="awq"``), or rounded to nearest.
        options: ``bits``, ``block_size``, ``scheme``, ``scale_dtype`` of :func:`qcore.quantize`.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    if not weights:
        raise _core.QcoreValueError("awq_scales: weights is empty, expected one or more arrays [N, K]")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise _core.QcoreValueError(f"awq_scales: steps is {steps!r}, expected a positive integer")
    layers = [_layer(weight, f"awq_scales: weights[{i}]") for i, weight in enumerate(weights)]
    features = layers[0].shape[1]
    for i, layer in enumerate(layers):
        if layer.shape[1] != features:
            raise _core.QcoreValueError(
                f"awq_scales: weights[{i}] has shape {list(layer.shape)}, expected [N, {features}] like weights[0]"
            )
    x = float_samples(samples, features, "awq_scales: samples")
    mean = np.abs(x).mean(axis=0)
    x = x[:: max(1, len(x) // _SAMPLES)]
    exact = [x @ layer.astype(np.float64).T for layer in layers]
    total = sum(float(np.square(y).sum()) for y in exact) or 1.0

    def attempt(scales: npt.NDArray[np.float32]) -> tuple[float, list[QuantizedTensor]]:
        inputs = x / scales
        method = {"method": "awq", "samples": inputs} if clip else {"method": "rtn"}
        made = [quantize(layer * scales, **options, **method) for layer in layers]
        outputs = (inputs @ each.dequantize().astype(np.float64).T for each in made)
        return sum(float(np.square(y - e).sum()) for y, e in zip(outputs, exact, strict=True)) / total, made

    best = unscaled = attempt(np.ones(features, np.float32))
    chosen, exponent = np.ones(features, np.float32), 0.0
    for step in range(1, steps + 1):
        scales = _scales(mean, step / steps)
        found = attempt(scales)
        if found[0] < best[0]:
            best, chosen, exponent = found, scales, step / steps
    return AwqScales(chosen, best[1], exponent, best[0], unscaled[0])


def fold_scales(scales: Any, *parameters: Any) -> list[npt.NDArray[np.float32]]:
    """Return the parameters of what makes a scaled input, divided by the scales of its channels.

    Args:
        scales: [K], of :func:`awq_scales`.
        parameters: a norm's weight [K] and bias [K], or weight [K, J] and bias [K] of the linear layer before.

    Returns:
        float32 arrays in the order and of the shapes of ``parameters``.

    Raises:
        QcoreValueError: a parameter of another shape.
    """
    divisor = np.asarray(scales, np.float32)
    folded = []
    for i, parameter in enumerate(parameters):
        array = np.asarray(parameter, np.float32)
        if array.ndim not in (1, 2) or len(array) != len(divisor):
            raise _core.QcoreValueError(
                f"fold_scales: parameters[{i}] has shape {list(array.shape)}, expected [{len(divisor)}] or "
                f"[{len(divisor)}, J]"
            )
        folded.append(array / (divisor if array.ndim == 1 else divisor[:, None]))
    return folded


def _layer(weight: Any, where: str) -> npt.NDArray[np.float32]:
    array = np.asarray(weight.detach().cpu().float().numpy() if hasattr(weight, "detach") else weight)
    if array.ndim != 2 or array.dtype.kind not in "fV" or array.shape[1] == 0:
        raise _core.QcoreValueError(f"{where} is {array.dtype} {list(array.shape)}, expected floating-point [N, K]")
    return array.astype(np.float32)


def _scales(mean: npt.NDArray[np.float64], exponent: float) -> npt.NDArray[np.float32]:
    """Return ``mean ** exponent``, around 1: the geometric middle of the largest and the smallest is 1."""
    raw = np.maximum(mean, 1e-4 * (mean.max() or 1.0)) ** exponent
    scales: npt.NDArray[np.float32] = (raw / np.sqrt(raw.max() * raw.min())).astype(np.float32)
    return scales
