"""AWQ weights on a device: dequantized beside torch's copy_ of as many bytes, multiplied beside torch's matmul.

A dequantization moves 2.5 bytes per weight. A dequantized weight is compared with the CPU's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import qcore

from ..results import Case
from .device import Timed, case_of, copies_for, free, measure

SHAPES = ((4096, 4096, 128), (4096, 11008, 128), (8192, 28672, 128))  # K, N, g
ROWS = (1, 512)


def _weight(torch: Any, k: int, n: int, group: int, seed: int) -> tuple[Any, Any, Any]:
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def words(rows: int) -> Any:
        low, high = -(2**31), 2**31
        return torch.randint(low, high, (rows, n // 8), generator=generator, device="cuda").to(torch.int32)

    scales = torch.rand(k // group, n, generator=generator, device="cuda").mul_(0.01).half()
    return words(k), scales, words(k // group)


def _differing(torch: Any, weight: tuple[Any, Any, Any]) -> int:
    """Count the dequantized weights that differ from the CPU's."""
    expected = qcore.awq.dequantize(*(array.cpu() for array in weight)).view(torch.int16)
    given = qcore.awq.dequantize(*weight).cpu().view(torch.int16)
    return int((expected != given).sum())


def _case(torch: Any, k: int, n: int, group: int, rounds: int) -> Case:
    moved = k * n * 5 // 2
    copies = max(2, copies_for(moved))
    weights = [_weight(torch, k, n, group, seed) for seed in range(copies)]
    differing = _differing(torch, weights[0])
    options = {"dtype": torch.float16, "device": "cuda"}
    outs, turned = (
        [torch.empty(shape, **options) for _ in range(copies)] for shape in ((k, n), (n, k))
    )  # one for each copy
    sources, targets = (
        [torch.empty(moved // 2, dtype=torch.uint8, device="cuda") for _ in range(copies)] for _ in range(2)
    )
    dense = [qcore.awq.dequantize(*weight) for weight in weights]
    packed = [qcore.awq.Weight(*weight) for weight in weights]
    implementations: list[Timed] = []

    def add(name: str, call: Callable[[int], Any], size: int = 0, **facts: Any) -> None:
        library = "torch" if name.startswith(("torch", "copy_")) else "qcore"
        implementations.append(Timed(name, library, call, copies, size, facts=facts))

    add("copy_", lambda i: targets[i].copy_(sources[i]), moved)
    same = {"same_as_reference": differing == 0, "details": {"differing": differing}}
    add("dequantize", lambda i: qcore.awq.dequantize(*weights[i], out=outs[i]), moved, **same)
    add(
        "dequantize transposed",
        lambda i: qcore.awq.dequantize(*weights[i], transpose=True, out=turned[i]),
        moved,
    )
    for m in ROWS:
        x, y = torch.randn(m, k, device="cuda").half(), torch.empty(m, n, **options)
        add(f"Weight, {m} rows", lambda i, x=x, y=y: packed[i](x, out=y))
        add(f"linear on raw arrays, {m} rows", lambda i, x=x, y=y: qcore.awq.linear(x, *weights[i], out=y))
        add(f"torch.matmul, {m} rows", lambda i, x=x, y=y: torch.matmul(x, dense[i], out=y))
    measure(torch, implementations, rounds)
    return case_of(f"{k}x{n} g{group}", {"K": k, "N": n, "g": group}, k * n, {}, implementations)


def cases(torch: Any, *, shapes: Sequence[tuple[int, int, int]] = SHAPES, rounds: int = 15) -> Iterator[Case]:
    """Measure all weights."""
    for k, n, group in shapes:
        yield _case(torch, k, n, group, rounds)
        free(torch)
