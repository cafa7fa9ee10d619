"""Activations as codes on a device: quantization, norms and gates that end with codes, and products that take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import qcore
from qcore import decoder

from ..results import Case
from .device import Timed, case_of, copies_for, free, limits, measure
from .linear import Layer

OPERATORS = ("quantize", "norm", "gate", "linear")
ROWS = (1, 4, 16, 256, 4096)
_HIDDEN, _INTERMEDIATE = 4096, 14336
_FORMS = ((4, 128), (8, 0))  # bits and block size of weights; 0 is one block per row


def _quantize(torch: Any, m: int) -> tuple[str, list[Timed]]:
    size = m * _HIDDEN
    copies = copies_for(3 * size)
    xs = [torch.randn(m, _HIDDEN, device="cuda").half() for _ in range(copies)]
    rows = []
    forms: dict[str, dict[str, Any]] = {
        "qcore int8 g128": {"block_size": 128},
        "qcore int8 per row": {},
        "qcore int8_asym g128": {"block_size": 128, "compute": "int8_asym"},
        "qcore int8 per row, given scale": {"scale": 0.02},
    }
    for name, options in forms.items():
        moved = 3 * size + 4 * m * (_HIDDEN // 128 if "g128" in name else 1)

        def call(i: int, options: dict[str, Any] = options) -> Any:
            return qcore.quantize_activations(xs[i], **options)

        rows.append(Timed(name, "qcore", call, copies, moved))
    half = [torch.empty(3 * size // 4, dtype=torch.float16, device="cuda") for _ in range(copies)]
    other = [torch.empty_like(one) for one in half]
    rows.append(Timed("torch copy_ of as many bytes", "torch", lambda i: other[i].copy_(half[i]), copies, 3 * size))
    return f"quantize {m}x{_HIDDEN} float16", rows


def _pairs(
    name: str, xs: list[Any], first: Callable[[Any], Any], fused: Callable[..., Any], moved: int
) -> tuple[str, list[Timed]]:
    """Return an operator that ends with codes beside the operator and quantize_activations."""
    rows = [Timed("qcore without codes", "qcore", lambda i: first(xs[i]), len(xs))]
    for form, block in (("g128", 128), ("per row", None)):

        def two(i: int, block: int | None = block) -> Any:
            return qcore.quantize_activations(first(xs[i]), block)

        def one(i: int, block: int | None = block) -> Any:
            return fused(xs[i], block_size=block)

        rows.append(Timed(f"qcore one call {form}", "qcore", one, len(xs), moved))
        rows.append(Timed(f"qcore two calls {form}", "qcore", two, len(xs)))
    return name, rows


def _norm(torch: Any, m: int) -> tuple[str, list[Timed]]:
    moved = 3 * m * _HIDDEN
    xs = [torch.randn(m, _HIDDEN, device="cuda").half() for _ in range(copies_for(moved))]
    weight = torch.randn(_HIDDEN, device="cuda").half()
    return _pairs(
        f"rms_norm {m}x{_HIDDEN} float16",
        xs,
        lambda x: decoder.rms_norm(x, weight),
        lambda x, **options: decoder.rms_norm_quantize(x, weight, **options),
        moved,
    )


def _gate(torch: Any, m: int) -> tuple[str, list[Timed]]:
    moved = 5 * m * _INTERMEDIATE
    xs = [torch.randn(m, 2 * _INTERMEDIATE, device="cuda").half() for _ in range(copies_for(moved))]
    name = f"gated_activation {m}x{_INTERMEDIATE} float16"
    return _pairs(name, xs, decoder.gated_activation, decoder.gated_activation_quantize, moved)


def _linear(torch: Any, layer: Layer, m: int) -> tuple[str, list[Timed]]:
    n, k = layer.shape
    x = torch.randn(m, k, device="cuda").half()
    y = torch.empty(m, n, device="cuda", dtype=torch.float16)
    blocks, per_row = qcore.quantize_activations(x, layer.block_size), qcore.quantize_activations(x)
    weights = layer.quantized
    rows = [
        Timed(
            name,
            "qcore",
            lambda i, given=given, options=options: qcore.linear(given, weights[i], out=y, **options),
            len(weights),
            layer.nbytes + m * (k + n) * 2,
            2 * m * n * k,
        )
        for name, given, options in (
            ("qcore int8", x, {}),
            ("qcore int8, codes given", blocks, {}),
            ("qcore int8_token", x, {"compute": "int8_token"}),
            ("qcore int8_token, codes given", per_row, {}),
            ("qcore int8, given scale", x, {"x_scale": 0.02}),
        )
    ]
    return f"linear {n}x{k} w{layer.bits} g{layer.block_size} M={m}", rows


def cases(
    torch: Any, *, operators: Sequence[str] = OPERATORS, rows: Sequence[int] = ROWS, rounds: int = 15
) -> Iterator[Case]:
    """Measure all operators with all numbers of rows."""
    found = limits(torch)

    def case(made: tuple[str, list[Timed]], m: int) -> Case:
        name, implementations = made
        measure(torch, implementations, rounds)
        return case_of(name, {"rows": m}, m, found, implementations)

    for operator, make in (("quantize", _quantize), ("norm", _norm), ("gate", _gate)):
        for m in rows if operator in operators else ():
            yield case(make(torch, m), m)
            free(torch)
    for bits, block_size in _FORMS if "linear" in operators else ():
        layer = Layer(torch, (_HIDDEN, _HIDDEN), bits, block_size, "symmetric")
        for m in rows:
            yield case(_linear(torch, layer, m), m)
        free(torch)
