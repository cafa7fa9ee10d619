"""Convolutions on a device: the kernels of conv2d and static beside torch's of floats.

Each call finds its weight in the second-level cache. Images are channels_last for all libraries, fp16 for conv2d; torch
chooses its algorithms with cudnn.benchmark. Every kernel of qcore is compared with its `simt` row: bit for bit, float
activations within a thousandth of the largest result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import qcore
import qcore.static

from ..results import Case
from .device import Timed, case_of, free, limits, measure

# x's shape, the weight's, groups; padding keeps the extents
LAYERS = (
    ((1, 64, 56, 56), (64, 64, 3, 3), 1),
    ((1, 256, 14, 14), (256, 256, 3, 3), 1),
    ((8, 128, 28, 28), (128, 128, 3, 3), 1),
    ((1, 512, 14, 14), (2048, 512, 1, 1), 1),
    ((64, 128, 28, 28), (128, 128, 3, 3), 1),
    ((1, 256, 28, 28), (256, 1, 3, 3), 256),
    ((1, 256, 28, 28), (512, 256, 1, 1), 1),
)
_MOST_CALLS = 64  # in a graph
_FLOAT_TOLERANCE = 1e-3


def name_of(x: Sequence[int], w: Sequence[int]) -> str:
    """Return the name of a layer's case."""
    return f"{'x'.join(map(str, x))}_w{'x'.join(map(str, w))}"


class _Problem:
    def __init__(self, torch: Any, x: tuple[int, ...], w: tuple[int, ...], groups: int, kernels: str) -> None:
        self.torch, self.groups, self.padding, self.kernels = torch, groups, w[2] // 2, re.compile(kernels)
        generator = torch.Generator(device="cuda").manual_seed(7)
        self.x = torch.randn(*x, device="cuda", generator=generator).to(memory_format=torch.channels_last)
        self.w = torch.randn(*w, device="cuda", generator=generator)
        self.operations = 2 * x[0] * x[2] * x[3] * w[0] * w[1] * w[2] * w[3]
        self.implementations: list[Timed] = []
        self.expected: dict[str, Any] = {}  # of the rows that compute the same

    def add(self, name: str, call: Callable[[], Any], **facts: Any) -> None:
        self.implementations.append(
            Timed(
                name,
                name.partition(" ")[0],
                lambda _: call(),
                operations=self.operations,
                most_calls=_MOST_CALLS,
                facts=facts,
            )
        )

    def add_torch(self) -> None:
        torch = self.torch
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            x, w = (values.to(dtype, memory_format=torch.channels_last) for values in (self.x, self.w))

            def call(x: Any = x, w: Any = w) -> Any:
                return torch.nn.functional.conv2d(x, w, padding=self.padding, groups=self.groups)

            self.add(f"torch {str(dtype)[6:]}", call)

    def rows(self, op: str) -> list[str]:
        return [
            row.name
            for row in qcore.kernels(op)
            if row.device == "cuda" and row.available and self.kernels.search(row.name)
        ]

    def add_conv2d(self, bits: int, g: int) -> None:
        weight = qcore.quantize(self.w.cpu().numpy(), bits=bits, block_size=g, method="rtn", scale_dtype="float32").to(
            "cuda"
        )
        x = self.x.half()
        for mode in ("float", "int8", "int8_asym"):
            for kernel in self.rows("conv2d"):

                def call(mode: str = mode, kernel: str = kernel, out: Any = None) -> Any:
                    with qcore.force_kernel("conv2d", kernel):
                        return qcore.conv2d(x, weight, padding=self.padding, groups=self.groups, compute=mode, out=out)

                family = f"qcore conv2d {mode} w{bits} g{g}"
                self.add_row(family, kernel, call, mode != "float", weight_bits=bits, block_size=g, activations=mode)

    def add_static(self) -> None:
        x = (self.x * 40 + 128).round().clamp(0, 255).to(self.torch.uint8)
        layer = qcore.static.QConv2d.from_float(
            1 / 40, 128, self.w.cpu().numpy(), 0.5, 128, padding=self.padding, groups=self.groups
        ).to("cuda")
        for kernel in self.rows("static"):

            def call(kernel: str = kernel, out: Any = None) -> Any:
                with qcore.force_kernel("static", kernel):
                    return layer(x, out=out)

            self.add_row("qcore static", kernel, call, True, weight_bits=8, activations="int8")

    def add_row(self, family: str, kernel: str, call: Any, exact: bool, **facts: Any) -> None:
        """Add one of qcore's kernels, if it takes the case, compared with `simt`."""
        try:
            if family not in self.expected:
                self.expected[family] = call(kernel="simt")
            y = call()
        except qcore.QcoreValueError:
            return
        out, expected = self.torch.empty_like(y), self.expected[family]
        same: bool | None = None
        if exact:
            same = bool(self.torch.equal(y, expected))
        elif float((y - expected).abs().max()) > _FLOAT_TOLERANCE * float(expected.abs().max()):
            same = False
        self.add(f"{family} {kernel}", lambda: call(out=out), kernel=kernel, same_as_reference=same, **facts)


def cases(
    torch: Any,
    *,
    layers: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]] = LAYERS,
    bits: Sequence[int] = (8, 4),
    block_sizes: Sequence[int] = (64, 128),
    kernels: str = "",
    rounds: int = 15,
) -> Iterator[Case]:
    """Measure all layers."""
    torch.backends.cudnn.benchmark = True
    found = limits(torch)
    for x, w, groups in layers:
        problem = _Problem(torch, x, w, groups, kernels)
        problem.add_torch()
        for width in bits:
            for g in block_sizes:
                problem.add_conv2d(width, g)
        problem.add_static()
        measure(torch, problem.implementations, rounds)
        yield case_of(name_of(x, w), {"groups": groups}, problem.operations, found, problem.implementations)
        del problem
        free(torch)
