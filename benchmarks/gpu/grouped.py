"""The products of mixtures of experts on a device: grouped_linear beside torch's grouped product in bf16.

Tokens choose their experts at random, so that all experts have about the same number of rows. The loop calls linear for
each expert with rows, with counts that the host knows beforehand, which it does not know in a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import qcore

from ..results import Case
from .device import Timed, case_of, copies_for, free, limits, measure

# experts, experts of a token, N, K
SHAPES = ((128, 8, 1536, 2048), (128, 8, 2048, 768), (8, 2, 14336, 4096))
TOKENS = (1, 16, 64, 256, 1024)


class _Problem:
    def __init__(self, torch: Any, shape: Sequence[int], weights: list[Any], dense: list[Any], tokens: int) -> None:
        self.torch, self.weights, self.dense = torch, weights, dense
        experts, chosen, self.n, self.k = shape
        generator = torch.Generator(device="cuda").manual_seed(tokens)
        scores = torch.rand(tokens, experts, device="cuda", generator=generator)
        self.counts = torch.bincount(scores.topk(chosen).indices.flatten(), minlength=experts)
        self.x = torch.randn(tokens * chosen, self.k, device="cuda", generator=generator).bfloat16()
        self.implementations: list[Timed] = []

    def add(self, name: str, call: Any, copies: int, size: int, **facts: Any) -> None:
        used = int((self.counts > 0).sum())
        moved = used * size // len(self.counts) + self.x.shape[0] * (self.k + self.n) * 2
        operations = 2 * self.x.shape[0] * self.n * self.k
        library = name.partition(" ")[0]
        self.implementations.append(
            Timed(name, library, call, copies, bytes_per_call=moved, operations=operations, facts=facts)
        )

    def add_qcore(self, experts: list[Any], bits: int, block_size: int, compute: Sequence[str]) -> None:
        form = {"weight_bits": bits, "block_size": block_size}
        ends = self.counts.cumsum(0).tolist()
        parts = [
            (e, slice(end - count, end)) for e, (end, count) in enumerate(zip(ends, self.counts.tolist(), strict=True))
        ]
        parts = [(e, part) for e, part in parts if part.stop > part.start]
        for mode in compute:
            out = self.torch.empty(self.x.shape[0], self.n, dtype=self.torch.bfloat16, device="cuda")

            def grouped(i: int, mode: str = mode, out: Any = out) -> Any:
                return qcore.grouped_linear(self.x, self.weights[i], self.counts, compute=mode, out=out)

            def loop(i: int, mode: str = mode, out: Any = out) -> Any:
                for e, part in parts:
                    qcore.linear(self.x[part], experts[e], compute=mode, out=out[part])
                return out

            size = self.weights[0].nbytes
            self.add(f"qcore {mode} w{bits} g{block_size}", grouped, len(self.weights), size, activations=mode, **form)
            self.add(f"qcore loop of linear {mode}", loop, 1, size, activations=mode, **form)
            if mode != "float":
                same = bool(self.torch.equal(grouped(0).clone(), loop(0)))
                self.implementations[-2].facts["same_as_reference"] = same

    def add_torch(self) -> None:
        ends = self.counts.cumsum(0).to(self.torch.int32)
        size = self.dense[0].numel() * 2
        self.add(
            "torch _grouped_mm bf16",
            lambda i: self.torch._grouped_mm(self.x, self.dense[i].transpose(1, 2), offs=ends),
            len(self.dense),
            size,
            weight_bits=16,
        )


def cases(
    torch: Any,
    *,
    shapes: Sequence[Sequence[int]] = SHAPES,
    tokens: Sequence[int] = TOKENS,
    bits: Sequence[int] = (4,),
    block_size: int = 128,
    compute: Sequence[str] = ("int8",),
    rounds: int = 15,
) -> Iterator[Case]:
    """Measure all mixtures with all numbers of tokens."""
    found = limits(torch)
    for shape in shapes:
        experts, chosen, n, k = shape
        w = torch.randn(experts * n, k, device="cuda")
        dense = [w.bfloat16().view(experts, n, k) for _ in range(copies_for(2 * w.numel()))]
        for width in bits:
            parts = w.cpu().numpy().reshape(experts, n, k)
            each = [
                qcore.quantize(part, bits=width, block_size=block_size, method="rtn", scale_dtype="float32")
                for part in parts
            ]
            host = qcore.concatenate(each)
            weights = [host.to("cuda") for _ in range(copies_for(host.nbytes))]
            each = [part.to("cuda") for part in each]
            for count in tokens:
                problem = _Problem(torch, shape, weights, dense, count)
                problem.add_qcore(each, width, block_size, compute)
                problem.add_torch()
                measure(torch, problem.implementations, rounds)
                name = f"{experts} experts {n}x{k}, {chosen} of a token, {count} tokens, w{width} g{block_size}"
                parameters = {"experts": experts, "chosen": chosen, "N": n, "K": k, "tokens": count, "bits": width}
                yield case_of(
                    name, parameters | {"g": block_size}, 2 * count * chosen * n * k, found, problem.implementations
                )
                del problem
                free(torch)
