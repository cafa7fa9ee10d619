"""The cases that `qcore bench` measures: typical sizes of each operator, with NumPy's and torch's way beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import qcore
from qcore import awq, gru, lstm, lut, static

Array = npt.NDArray[Any]
Peak = Literal["", "int8", "fp32"]

_ROTATED_BYTES, _MOST_COPIES = 64 << 20, 32
# One form of weight in every version, so that results of different days can be compared.
_FORM: dict[str, Any] = {"block_size": 64, "method": "rtn", "scale_dtype": "float32"}


@dataclass(frozen=True)
class Call:
    """One library's way to compute a case."""

    name: str  # begins with the library
    run: Callable[[int], Any]  # with the number of the copy of the weight
    nbytes: int  # read and written by a call, weights included
    copies: int
    peak: Peak  # of the arithmetic that limits it; empty if there is no probe of that
    kernels: str  # the operator of qcore's kernel table


@dataclass
class Case:
    """One problem; ``truth`` is the exact result, float64, which errors are relative to, or None."""

    name: str
    operations: int
    truth: Array | None = None
    calls: list[Call] = field(default_factory=list)

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        nbytes: int,
        weights: Sequence[Any] = (),
        peak: Peak = "",
        kernels: str = "",
        **options: Any,
    ) -> None:
        """Add ``function(*arguments, **options)``; of ``weights`` each call gets another one as its last argument."""

        def run(copy: int) -> Any:
            return function(*arguments, *weights[copy : copy + 1], **options)

        self.calls.append(Call(name, run, nbytes, max(1, len(weights)), peak, kernels))

    def error(self, result: Any) -> float | None:
        """Return the relative error of a result in the L2 norm."""
        if self.truth is None:
            return None
        values = np.asarray(result.float() if hasattr(result, "float") else result, np.float64)
        return float(np.linalg.norm(values - self.truth) / np.linalg.norm(self.truth))


def _copies(make: Callable[[], Any], nbytes: int) -> list[Any]:
    """Return copies that are together larger than the caches, so that a call finds its weight in memory."""
    return [make() for _ in range(min(_MOST_COPIES, math.ceil(_ROTATED_BYTES / nbytes)))]


def _product(x: Array, w: Array) -> Array:
    return np.asarray(x @ w.T)


def linear(torch: Any, quick: bool) -> Iterator[Case]:
    """Make linear layers with one, some and many rows of activations."""
    n = k = 1024 if quick else 4096
    rng = np.random.default_rng(0)
    w = rng.standard_normal((n, k), np.float32) / np.float32(math.sqrt(k))
    packed = {
        bits: _copies(lambda bits=bits: qcore.quantize(w, bits=bits, **_FORM), n * k * bits // 8)  # type: ignore[misc]
        for bits in (4, 8)
    }
    dense = _copies(w.copy, w.nbytes)
    dtypes = {} if torch is None else {"fp32": torch.float32, "bf16": torch.bfloat16}
    tensors = {name: [torch.from_numpy(each).to(dtype) for each in dense] for name, dtype in dtypes.items()}
    for m in (1, 16) if quick else (1, 16, 256):
        x, moved = rng.standard_normal((m, k), np.float32), 4 * m * (n + k)
        case = Case(f"linear {n}x{k}, {m} rows", 2 * m * n * k, x.astype(np.float64) @ w.T.astype(np.float64))
        for bits, compute in ((4, "int8"), (8, "int8"), (4, "float")):
            name, nbytes, peak = f"qcore {bits} bits g64, {compute}", packed[bits][0].nbytes + moved, "int8"
            peak = "fp32" if compute == "float" else "int8"
            form: dict[str, Any] = {"weights": packed[bits], "compute": compute, "kernels": "linear", "peak": peak}
            case.add(name, qcore.linear, x, nbytes=nbytes, **form)
        case.add("numpy fp32", _product, x, nbytes=w.nbytes + moved, weights=dense, peak="fp32")
        for name, weights in tensors.items():
            given, nbytes = torch.from_numpy(x).to(dtypes[name]), weights[0].nbytes + moved
            form = {"weights": weights, "peak": "fp32" if name == "fp32" else ""}
            case.add(f"torch {name}", torch.nn.functional.linear, given, nbytes=nbytes, **form)
        yield case


def conv(torch: Any, quick: bool) -> Iterator[Case]:
    """Make convolutions with per-block weights and in static int8."""
    extent = 14 if quick else 56
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 64, extent, extent), np.float32), rng.standard_normal((64, 64, 3, 3), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x[0], ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    truth = np.einsum("cyxij,ocij->oyx", windows.astype(np.float64), w.astype(np.float64), optimize=True)[None]
    case = Case(f"conv {extent}x{extent}, 64 to 64 channels, 3x3", 2 * truth.size * 64 * 9, truth)
    weight, moved = qcore.quantize(w, bits=8, **_FORM), x.nbytes + truth.size * 4
    nbytes = weight.nbytes + moved
    case.add("qcore 8 bits g64", qcore.conv2d, x, weight, padding=1, nbytes=nbytes, peak="int8", kernels="conv2d")
    if torch is not None:
        given, function = [torch.from_numpy(array) for array in (x, w)], torch.nn.functional.conv2d
        case.add("torch fp32", function, *given, padding=1, nbytes=w.nbytes + moved, peak="fp32")
    yield case
    scales = float(np.abs(x).max() / 127), float(np.abs(truth).max() / 127)
    layer = static.QConv2d.from_float(scales[0], 128, w, scales[1], 128, padding=1)
    codes = np.clip(np.rint(x / scales[0]) + 128, 0, 255).astype(np.uint8)
    case = Case(f"{case.name}, codes in and out", case.operations, truth / scales[1] + 128)
    case.add("qcore static", layer, codes, nbytes=w.size + moved // 4, peak="int8", kernels="static")
    yield case


def recurrent(kind: Literal["gru", "lstm"], torch: Any, quick: bool) -> Iterator[Case]:
    """Make a GRU or LSTM layer on a few sequences."""
    package: Any = gru if kind == "gru" else lstm
    weights_type, gates = (gru.GruWeights, 3) if kind == "gru" else (lstm.LstmWeights, 4)
    steps, batch, inputs, hidden = (10, 4, 64, 64) if quick else (50, 8, 128, 256)
    rng, bound = np.random.default_rng(0), hidden**-0.5
    shapes = ((gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
    arrays = [rng.uniform(-bound, bound, shape).astype(np.float32) for shape in shapes]
    x = rng.uniform(-0.7, 0.8, (steps, batch, inputs)).astype(np.float32)
    weights: Any = weights_type.from_arrays(*arrays)
    truth = package.float_cell.run(weights.layers[0][0], x.astype(np.float64))[0]
    size, moved = arrays[0].size + arrays[1].size, x.nbytes + 4 * truth.size
    case = Case(f"{kind} {inputs} to {hidden}, {steps} steps of {batch}", 2 * steps * batch * size, truth)
    calibrator = package.Calibrator(weights).observe(x)
    for bits in (8, 16):
        model, peak = calibrator.finish(package.Config(bits=bits)), "int8" if bits == 8 else ""
        form: dict[str, Any] = {"nbytes": size * bits // 8 + moved, "peak": peak, "kernels": kind}
        case.add(f"qcore {bits} bits", lambda model=model: model(x)[0], **form)
    if torch is not None:
        module, given = getattr(torch.nn, kind.upper())(inputs, hidden).eval(), torch.from_numpy(x)
        for parameter, array in zip(module.parameters(), arrays, strict=True):
            blocks = np.split(array, gates)  # torch has r before z in a GRU
            ordered = [blocks[1], blocks[0], *blocks[2:]] if kind == "gru" else blocks
            parameter.copy_(torch.from_numpy(np.concatenate(ordered)))
        case.add("torch fp32", lambda: module(given)[0], nbytes=4 * size + moved, peak="fp32")
    yield case


def functions(torch: Any, quick: bool) -> Iterator[Case]:
    """Make functions by look-up tables, and softmax."""
    size = 1 << (14 if quick else 20)
    exact: dict[str, Callable[[Array], Array]] = {
        "silu": lambda x: x / (1 + np.exp(-x)),
        "exp": np.exp,
        "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
    }
    for name, expression in exact.items():
        for dtype in ("float32", "float16"):
            x = np.random.default_rng(0).standard_normal((size // 1024, 1024)).astype(dtype)
            case = Case(f"{name} {dtype}, {size} elements", 0, expression(x.astype(np.float64)))
            kernels = "softmax" if name == "softmax" else "lut"
            case.add("qcore", getattr(lut, name), x, out=np.empty_like(x), nbytes=2 * x.nbytes, kernels=kernels)
            case.add("numpy", expression, x, nbytes=2 * x.nbytes)
            if torch is not None:
                function = torch.nn.functional.silu if name == "silu" else getattr(torch, name)
                more: dict[str, Any] = {"dim": -1} if name == "softmax" else {}
                case.add("torch", function, torch.from_numpy(x), nbytes=2 * x.nbytes, **more)
            yield case


def quantize(torch: Any, quick: bool) -> Iterator[Case]:
    """Make weights to quantize and to decode, beside a copy of as many bytes."""
    n = 512 if quick else 4096
    w = np.random.default_rng(0).standard_normal((n, n), np.float32)
    packed = qcore.quantize(w, bits=4, **_FORM)
    words = np.random.default_rng(1).integers(-(2**31), 2**31, (n, n // 8), np.int64).astype(np.int32)
    arrays = words, np.full((n // 64, n), 0.01, np.float16), words[: n // 64].copy()
    moved = w.nbytes + packed.nbytes
    forms: list[tuple[str, str, Callable[[], Any], int]] = [
        (f"quantize {n}x{n} to 4 bits", "quantize", lambda: qcore.quantize(w, bits=4, **_FORM), moved),
        (f"dequantize {n}x{n} of 4 bits", "dequantize", packed.dequantize, moved),
        (f"dequantize {n}x{n} of AWQ", "awq", lambda: awq.dequantize(*arrays), 2 * n * n + 5 * n * n // 8),
    ]
    for name, kernels, function, nbytes in forms:
        # Virtual machines move zeros up to three times as fast as anything else.
        source = np.random.default_rng(0).integers(0, 256, nbytes // 2, np.uint8)
        case = Case(name, 0)
        case.add("qcore", function, nbytes=nbytes, kernels=kernels)
        case.add("numpy copyto", np.copyto, np.empty_like(source), source, nbytes=nbytes)
        yield case


OPERATORS: dict[str, Callable[[Any, bool], Iterator[Case]]] = {
    "linear": linear,
    "conv": conv,
    "gru": partial(recurrent, "gru"),
    "lstm": partial(recurrent, "lstm"),
    "lut": functions,
    "quantize": quantize,
}
