"""Scaling of input channels before quantization, as in AWQ and in SmoothQuant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _checks, _core
from qcore._options import LinearCompute, named_arguments
from qcore.linear import LINEAR_COMPUTE, linear
from qcore.methods.samples import float_samples
from qcore.quantized_tensor import QuantizedTensor, quantize

_SAMPLES = 2048  # rows that decide; more change little and cost time
_SMOOTH_SAMPLES = 512
_FLOOR = 1e-4
"""Least size of a channel, relative to the largest: without it a channel that is zero would have no finite scale."""


@dataclass(frozen=True)
class ChannelScales:
    """Holds the result of :func:`awq_scales` or :func:`smooth_scales`.

    Attributes:
        scales: float32 [K]. Input channels are divided by them, columns of the weights have been multiplied.
        weights: the quantized ``weight * scales``, one for each layer.
        exponent: the chosen exponent: of mean(|x|) for :func:`awq_scales`, alpha of :func:`smooth_scales`; None means
            that no scaling was better, and all scales are 1.
        error: squared error of all layers' outputs over the samples, relative to the outputs.
        unscaled_error: the same with all scales 1.
    """

    scales: npt.NDArray[np.float32]
    weights: list[QuantizedTensor]
    exponent: float | None
    error: float
    unscaled_error: float


@named_arguments("awq_scales")
def awq_scales(
    weights: Sequence[Any], samples: Any, *, steps: int = 20, clip: bool = True, **options: Any
) -> ChannelScales:
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
    where = "awq_scales"
    _check_steps(steps, where)
    layers = _layers(weights, where)
    x = float_samples(samples, layers[0].shape[1], f"{where}: samples")
    mean = np.abs(x).mean(axis=0)
    problem = _Problem(layers, x[:: max(1, len(x) // _SAMPLES)])

    def attempt(scales: npt.NDArray[np.float32]) -> _Attempt:
        inputs = problem.x / scales
        method = {"method": "awq", "samples": inputs} if clip else {"method": "rtn"}
        made = [quantize(layer * scales, **options, **method) for layer in layers]
        return problem.error(inputs @ each.dequantize().astype(np.float64).T for each in made), made

    candidates = ((step / steps, _awq_candidate(mean, step / steps)) for step in range(1, steps + 1))
    return _best(attempt, candidates, len(mean))


@named_arguments("smooth_scales")
def smooth_scales(
    weights: Sequence[Any],
    samples: Any,
    *,
    alpha: float | None = None,
    steps: int = 20,
    compute: LinearCompute = "int8",
    power_of_two: bool = False,
    **options: Any,
) -> ChannelScales:
    """Return scales that move outliers of the input into the weights, and the layers quantized with them.

    For layers with integer activations: a channel of x that is much larger than the others takes the range of their
    codes. Channel j of x is divided by ``s_j = a_j ** alpha / b_j ** (1 - alpha)`` and column j of each weight
    multiplied by it, with ``a_j = max |x_mj|`` over the samples and ``b_j = max |w_nj|`` over the rows of all layers
    (Xiao et al., "SmoothQuant", 2023). Here a_j is at least 1e-4 of the largest a, and b_j of the largest b, so that a
    channel that is zero in x or in the weights has a finite scale; if all are zero they count as 1. Fold the division
    into what makes the input (:func:`fold_scales`).

    Args:
        weights: floating-point arrays [N, K], one or more layers with the same input, finite.
        samples: the input, numbers [M, K], finite. All rows count for a; the error is measured on up to 512 of them.
        alpha: from 0, which makes all columns of the weights equally large, to 1, which does so with the channels of x.
            None searches 0, 1/steps, ..., 1 and no scaling at all for the smallest squared error of the layers'
            outputs: those of :func:`qcore.linear` for the divided samples.
        steps: of the grid of exponents; only where alpha is None.
        compute: as for :func:`qcore.linear`, for the measured error: "int8" has a scale of x per row and block,
            "int8_token" one per row, which gains most.
        power_of_two: whether the scales are rounded to the nearest powers of two, ``2 ** rint(log2(s_j))``: folding is
            then exact in every floating-point dtype, but for underflow and overflow.
        options: ``bits``, ``block_size``, ``scheme``, ``scale_dtype``, ``method`` of :func:`qcore.quantize`. Methods
            "awq" and "gptq" get the divided samples.

    Returns:
        Scales, quantized weights, the exponent and errors; with a given alpha even if no scaling is better.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.

    Example:
        >>> import numpy as np, qcore
        >>> weight, x = np.full((8, 4), 0.25, np.float32), np.array([[1, 1, 1, 64]], np.float32)
        >>> qcore.smooth_scales([weight], x, alpha=0.5, block_size=4).scales
        array([ 2.,  2.,  2., 16.], dtype=float32)
    """
    where = "smooth_scales"
    _check_steps(steps, where)
    if alpha is not None:
        alpha = checked_alpha(alpha, f"{where}: alpha")
    _checks.choice(compute, LINEAR_COMPUTE, f"{where}: compute")
    for name in ("samples", "hessian"):
        if name in options:
            raise _core.QcoreTypeError(f"{where}: options has {name!r}, expected options without: samples gives it")
    layers = _layers(weights, where)
    x = float_samples(samples, layers[0].shape[1], f"{where}: samples")
    sizes = _with_floor(np.abs(x).max(axis=0))
    columns = _with_floor(np.max([np.abs(layer).max(axis=0) for layer in layers], axis=0).astype(np.float64))
    if sizes.max() > np.finfo(np.float32).max:
        raise _core.QcoreValueError(f"{where}: samples holds {sizes.max():g}, expected values of float32")
    problem = _Problem(layers, x[:: -(-len(x) // _SMOOTH_SAMPLES)])

    def attempt(scales: npt.NDArray[np.float32]) -> _Attempt:
        inputs = (problem.x / scales).astype(np.float32)
        given: dict[str, Any] = {"samples": inputs} if options.get("method") in ("awq", "gptq") else {}
        made = [quantize(layer * scales, **options, **given) for layer in layers]
        return problem.error(linear(inputs, each, compute=compute).astype(np.float64) for each in made), made

    def candidate(exponent: float) -> tuple[float, npt.NDArray[np.float32]]:
        logarithms = exponent * np.log2(sizes) - (1 - exponent) * np.log2(columns)
        return exponent, np.exp2(np.rint(logarithms) if power_of_two else logarithms).astype(np.float32)

    if alpha is None:
        return _best(attempt, (candidate(step / steps) for step in range(steps + 1)), len(sizes))
    unscaled = attempt(np.ones(len(sizes), np.float32))
    _, scales = candidate(alpha)
    error, made = attempt(scales)
    return ChannelScales(scales, made, alpha, error, unscaled[0])


@named_arguments("fold_scales", "fold_scales(scales, weight, bias)")
def fold_scales(scales: Any, *parameters: Any) -> list[npt.NDArray[np.float32]]:
    """Return the parameters of what makes a scaled input, divided by the scales of its channels.

    Args:
        scales: [K], of :func:`awq_scales` or :func:`smooth_scales`.
        parameters: a norm's weight [K] and bias [K], or weight [K, J] and bias [K] of the linear layer before.

    Returns:
        float32 arrays in the order and of the shapes of ``parameters``.

    Raises:
        QcoreValueError: a parameter of another shape, or a scale that is 0, a NaN or an infinity.
    """
    divisor = np.asarray(scales, np.float32)
    if divisor.ndim != 1:
        raise _core.QcoreValueError(f"fold_scales: scales has shape {list(divisor.shape)}, expected [K]")
    bad = np.flatnonzero((divisor == 0) | ~np.isfinite(divisor))
    if len(bad):
        raise _core.QcoreValueError(
            f"fold_scales: scales has {divisor[bad[0]]} at index [{bad[0]}], expected finite numbers other than 0"
        )
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


def checked_alpha(alpha: Any, where: str) -> float:
    """Return an exponent of :func:`smooth_scales` if it is a number from 0 to 1."""
    value = _checks.number(alpha, where)
    if not 0 <= value <= 1:
        raise _core.QcoreValueError(f"{where} is {alpha!r}, expected a number from 0 to 1")
    return value


_Attempt = tuple[float, list[QuantizedTensor]]
"""Error of the outputs with some scales, and the weights that have been quantized with them."""


class _Problem:
    """Holds the samples that decide, and the layers' exact outputs."""

    def __init__(self, layers: list[npt.NDArray[np.float32]], x: npt.NDArray[np.float64]) -> None:
        self.x = x
        self._exact = [x @ layer.astype(np.float64).T for layer in layers]
        self._total = sum(float(np.square(y).sum()) for y in self._exact) or 1.0

    def error(self, outputs: Iterable[npt.NDArray[np.float64]]) -> float:
        """Return the squared error of all layers' outputs, relative to the exact ones."""
        return sum(float(np.square(y - e).sum()) for y, e in zip(outputs, self._exact, strict=True)) / self._total


def _best(
    attempt: Callable[[npt.NDArray[np.float32]], _Attempt],
    candidates: Iterable[tuple[float, npt.NDArray[np.float32]]],
    features: int,
) -> ChannelScales:
    """Return the candidate with the smallest error; the scales 1 if none is smaller than theirs."""
    chosen, exponent = np.ones(features, np.float32), None
    best = unscaled = attempt(chosen)
    for power, scales in candidates:
        found = attempt(scales)
        if found[0] < best[0]:
            best, chosen, exponent = found, scales, power
    return ChannelScales(chosen, best[1], exponent, best[0], unscaled[0])


def _check_steps(steps: Any, where: str) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise _core.QcoreValueError(f"{where}: steps is {steps!r}, expected a positive integer")


def _layers(weights: Sequence[Any], where: str) -> list[npt.NDArray[np.float32]]:
    """Return the weights [N, K] of layers with one input in float32, checked."""
    if len(weights) == 0:
        raise _core.QcoreValueError(f"{where}: weights is empty, expected one or more arrays [N, K]")
    layers = [_layer(weight, f"{where}: weights[{i}]") for i, weight in enumerate(weights)]
    features = layers[0].shape[1]
    for i, layer in enumerate(layers):
        if layer.shape[1] != features:
            raise _core.QcoreValueError(
                f"{where}: weights[{i}] has shape {list(layer.shape)}, expected [N, {features}] like weights[0]"
            )
    return layers


def _layer(weight: Any, where: str) -> npt.NDArray[np.float32]:
    array = np.asarray(weight.detach().cpu().float().numpy() if hasattr(weight, "detach") else weight)
    if array.ndim != 2 or array.dtype.kind not in "fV" or 0 in array.shape:
        raise _core.QcoreValueError(f"{where} is {array.dtype} {list(array.shape)}, expected floating-point [N, K]")
    layer: npt.NDArray[np.float32] = array.astype(np.float32)
    if not np.isfinite(layer).all():
        raise _core.QcoreValueError(f"{where} holds a NaN or an infinity, expected finite values of float32")
    return layer


def _with_floor(sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the sizes of channels [K], at least 1e-4 of the largest; ones if all are zero."""
    largest = float(sizes.max())
    return np.maximum(sizes, _FLOOR * largest) if largest > 0 else np.ones_like(sizes)


def _awq_candidate(mean: npt.NDArray[np.float64], exponent: float) -> npt.NDArray[np.float32]:
    """Return ``mean ** exponent``, around 1: the geometric middle of the largest and the smallest is 1."""
    raw = _with_floor(mean) ** exponent
    scales: npt.NDArray[np.float32] = (raw / np.sqrt(raw.max() * raw.min())).astype(np.float32)
    return scales
