"""Linear layers on a device: qcore's kernels beside torch in bf16, int8, fp8 and 4 bits, and beside public kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import qcore
from qcore.weight_encoding import ENCODINGS

from ..results import Case
from .device import Timed, case_of, copies_for, free, limits, measure
from .peers import Peer, peers_of

SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008))  # N, K
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
QUICK_ROWS = (1, 8, 16, 128, 4096)
BLOCK_SIZES = (32, 64, 128, 0)  # 0: one block per row
_CHECKED_ROWS, _CHECKED_COLUMNS = 16, 64
_FLOAT8_NUMBERS = {"float8_e8m0fnu": (110, 130), "float8_e4m3fn": (1, 120)}  # of scales that make no NaN


class Layer:
    """Weights [N, K], quantized once for all numbers of rows; a block size of 0 is one block per row."""

    def __init__(self, shape: tuple[int, int], weight: qcore.QuantizedTensor, w: Any, form: str) -> None:
        self.shape, self.bits, self.block_size, self.form, self.w = shape, weight.bits, weight.block_size, form, w
        self.peers: list[tuple[Peer, int]] = []
        self.missing: dict[str, str] = {}  # peers that do not work here, and why
        self.nbytes = weight.nbytes
        self.quantized = [weight.to("cuda") for _ in range(copies_for(weight.nbytes))]

    @classmethod
    def plain(cls, torch: Any, shape: tuple[int, int], bits: int, block_size: int, scheme: str) -> Layer:
        """Quantize normal values."""
        generator = torch.Generator(device="cuda").manual_seed(shape[0] * 7 + shape[1])
        w = torch.randn(*shape, device="cuda", generator=generator)
        weight = qcore.quantize(
            w.cpu().numpy(),
            bits=bits,
            block_size=block_size or shape[1],
            scheme=scheme,
            method="rtn",
            scale_dtype="float32",
        )
        return cls(shape, weight, w, f"w{bits} g{weight.block_size} {scheme}")

    @classmethod
    def encoded(cls, torch: Any, shape: tuple[int, int], name: str) -> Layer:
        """Make a weight of random codes and parameters in one of qcore's encodings."""
        encoding, block_size = ENCODINGS[name]
        rng, widths = np.random.default_rng(shape[0] * 7 + shape[1]), encoding.widths()
        parts: dict[str, Any] = {}
        for part, about in encoding.arrays(shape, block_size).items():
            kind = encoding.scales if part == "scales" else encoding.offsets
            if about is None:
                parts[part] = None
            elif about[1] != "uint8":
                parts[part] = rng.uniform(-0.02, 0.02, about[0]).astype(about[1])
            else:
                low, high = _FLOAT8_NUMBERS.get(kind, (0, 2 ** widths.get(part, 8)))
                if part == "codes":
                    low, high = 0, 2**encoding.bits
                parts[part] = rng.integers(low, high, about[0], dtype=np.uint8)
        weight = qcore.QuantizedTensor.from_encoded(**parts, encoding=encoding, block_size=block_size)
        return cls(shape, weight, torch.from_numpy(weight.dequantize()).cuda(), name)

    def add_peers(self, torch: Any, rows: Sequence[int], cutlass: str | None) -> None:
        """Prepare the weight for all public kernels that take its format and are installed."""
        for peer in peers_of(self.bits, self.block_size, self.shape[1], cutlass):
            try:
                self.peers.append((peer, peer.prepare(torch, self.w, rows, copies_for)))
            except (
                Exception
            ) as error:  # a package that is missing, or does not take this device, is a line of the report
                self.missing[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0]

    def release(self) -> None:
        for peer, _ in self.peers:
            peer.release()


class _Problem:
    """One layer and one number of rows."""

    def __init__(self, torch: Any, layer: Layer, m: int) -> None:
        self.torch, self.layer, self.m = torch, layer, m
        (self.n, self.k), self.w = layer.shape, layer.w
        self.x = torch.randn(m, self.k, device="cuda", generator=torch.Generator(device="cuda").manual_seed(m)).half()
        self.columns = slice(0, min(self.n, _CHECKED_COLUMNS))
        self.rows = slice(0, min(m, _CHECKED_ROWS))
        self.exact = self.x[self.rows].double() @ self.w[self.columns].double().t()
        self.implementations: list[Timed] = []

    def add(self, name: str, weights: list[Any], call: Callable[[Any], Any], size: int, **facts: Any) -> None:
        moved = size + self.m * (self.k + self.n) * 2
        library = name.partition(" ")[0]
        self.implementations.append(
            Timed(
                name,
                library,
                lambda i: call(weights[i]),
                len(weights),
                bytes_per_call=moved,
                operations=2 * self.m * self.n * self.k,
                facts=facts,
            )
        )

    def add_chosen(self, modes: Sequence[str]) -> None:
        """Add calls of qcore that choose the kernel themselves."""
        layer = self.layer
        out = self.torch.empty(self.m, self.n, dtype=self.torch.float16, device="cuda")
        for mode in modes:

            def call(w: Any, mode: str = mode) -> Any:
                return qcore.linear(self.x, w, compute=mode, out=out)

            form = {"weight_bits": layer.bits, "block_size": layer.block_size, "activations": mode}
            name = f"qcore {mode} w{layer.bits} g{layer.block_size}"
            self.add(name, layer.quantized, call, layer.nbytes, kernel="chosen", **form)

    def add_peers(self) -> None:
        layer = self.layer
        out = self.torch.empty(self.m, self.n, dtype=self.torch.float16, device="cuda")
        for peer, nbytes in layer.peers:
            form = {"weight_bits": layer.bits, "block_size": layer.block_size, "activations": peer.activations}
            self.add(peer.name, peer.multiply, lambda multiply: multiply(self.x, out), nbytes, **form)

    def add_qcore(self, kernels: re.Pattern[str], modes: Sequence[str]) -> None:
        layer = self.layer
        out = self.torch.empty(self.m, self.n, dtype=self.torch.float16, device="cuda")
        for mode in modes:
            for row in qcore.kernels("linear"):
                if row.device != "cuda" or not row.available or not kernels.search(row.name):
                    continue

                def call(w: Any, mode: str = mode, kernel: str = row.name) -> Any:
                    with qcore.force_kernel("linear", kernel):
                        return qcore.linear(self.x, w, compute=mode, out=out)

                name = f"qcore {row.name} {mode} w{layer.bits} g{layer.block_size}"
                form = {"weight_bits": layer.bits, "block_size": layer.block_size, "activations": mode}
                self.add(name, layer.quantized, call, layer.nbytes, kernel=row.name, **form)

    def add_torch(self) -> None:
        torch, n, k, g = self.torch, self.n, self.k, self.layer.block_size
        x = self.x.bfloat16()
        dense = [self.w.bfloat16() for _ in range(copies_for(2 * n * k))]
        self.add("torch bf16", dense, lambda w: torch.nn.functional.linear(x, w), 2 * n * k, weight_bits=16)

        codes = [(self.w * 30).round().clamp(-127, 127).to(torch.int8) for _ in range(copies_for(n * k))]
        xq = (self.x * 30).round().clamp(-127, 127).to(torch.int8)
        name = "torch _int_mm (codes given, int32 out)"
        self.add(name, codes, lambda w: torch._int_mm(xq, w.t()), n * k, weight_bits=8)

        if hasattr(torch, "float8_e4m3fn"):
            one = torch.ones((), device="cuda")
            small = [self.w.to(torch.float8_e4m3fn) for _ in range(copies_for(n * k))]
            x8 = self.x.to(torch.float8_e4m3fn)
            self.add(
                "torch fp8 _scaled_mm (codes given)",
                small,
                lambda w: torch._scaled_mm(x8, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
                n * k,
                weight_bits=8,
            )

        if hasattr(torch, "_weight_int4pack_mm") and g in (32, 64, 128, 256) and k % g == 0:
            pairs = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
            scales = torch.full((k // g, n, 2), 0.01, dtype=torch.bfloat16, device="cuda")
            packed = [torch._convert_weight_to_int4pack(pairs, 8) for _ in range(copies_for(n * k // 2))]
            self.add(
                f"torch int4 weight-only g{g} (random codes)",
                packed,
                lambda w: torch._weight_int4pack_mm(x, w, g, scales),
                n * k // 2 + scales.numel() * 2,
                weight_bits=4,
                block_size=g,
                activations="float",
            )

    def check(self) -> None:
        """Note the relative L2 error of the first rows and columns, and whether integer kernels have equal bits."""
        torch = self.torch
        for timed in self.implementations:
            if timed.problem or "given" in timed.name or "random" in timed.name:
                continue
            try:
                y = timed.call(0)[self.rows, self.columns].double()
                timed.facts["error"] = float((y - self.exact).norm() / self.exact.norm())
            except Exception as error:  # the same reason will stand in the report
                timed.problem = f"{type(error).__name__}: {error}".splitlines()[0]
                torch.cuda.synchronize()
        for mode in ("int8", "int8_asym", "int16"):
            same = [t for t in self.implementations if t.facts.get("activations") == mode and not t.problem]
            reference = next((timed for timed in same if timed.facts.get("kernel") == "simt"), None)
            if reference is None:
                continue
            expected = reference.call(0).clone()
            for timed in same:
                timed.facts["same_as_reference"] = bool(torch.equal(timed.call(0), expected))


def cases(
    torch: Any,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    rows: Sequence[int] = ROWS,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    bits: Sequence[int] = (4, 8),
    scheme: str = "symmetric",
    compute: Sequence[str] = ("int8", "float"),
    kernels: str = "",
    encodings: Sequence[str] = (),
    peers: bool = False,
    cutlass: str | None = None,
    rounds: int = 15,
) -> Iterator[Case]:
    """Measure all layers with all numbers of rows: each kernel of qcore, or its choice beside public kernels.

    With encodings, their weights instead of those of all block sizes and bits.
    """
    found = limits(torch)
    for shape in shapes:
        n, k = shape
        forms: list[tuple[str, int, int]] = [(name, 0, 0) for name in encodings]
        for name, g, width in forms or [("", g, width) for g in block_sizes for width in bits]:
            layer = Layer.encoded(torch, shape, name) if name else Layer.plain(torch, shape, width, g, scheme)
            if peers and not name:
                layer.add_peers(torch, rows, cutlass)
            for m in rows:
                problem = _Problem(torch, layer, m)
                if peers:
                    problem.add_chosen(compute)
                    problem.add_peers()
                else:
                    problem.add_qcore(re.compile(kernels), compute)
                if not name:
                    problem.add_torch()
                problem.check()
                measure(torch, [timed for timed in problem.implementations if not timed.problem], rounds)
                parameters = {"N": n, "K": k, "M": m, "bits": layer.bits, "g": layer.block_size}
                parameters |= {"encoding": name} if name else {"scheme": scheme}
                case = case_of(f"{n}x{k} M={m} {layer.form}", parameters, 2 * m * n * k, found, problem.implementations)
                case.skipped |= layer.missing
                yield case
                del problem
                free(torch)
            layer.release()
