#!/usr/bin/env python3
"""Times linear's CUDA kernels beside torch on one device, and checks what they compute in the same run.

    pip install '.[test]' torch           # with QCORE_CUDA=on
    python benchmarks/gpu_linear.py --json benchmarks/results/gpu-linear.json
    python benchmarks/gpu_linear.py --quick
    python benchmarks/gpu_linear.py --shape 4096x4096 --m 1 --m 4096 --g 128 --bits 4 --kernels 'gemv|fused'

Every contender of a case is captured in a CUDA graph of calls that use copies of the weights in turn, more of them than
the second-level cache holds; graphs are replayed round after round, all contenders in turn, between CUDA events. The
figure is the median. Limits measured in the same run: a copy's bandwidth, and the rates of torch's bf16 and int8
products of large matrices.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008))  # N, K
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
QUICK_ROWS = (1, 8, 16, 128, 4096)
WORKING_SET = 256 << 20  # bytes of weights in turn: several times the second-level cache
MOST_COPIES = 64
GRAPH_SECONDS = 2e-3  # about what one replay takes
CHECKED_ROWS, CHECKED_COLUMNS = 16, 64


@dataclasses.dataclass
class Contender:
    name: str
    call: Callable[[int], Any]  # with copy number i of its weights
    weight_bytes: int
    copies: int
    samples: list[float] = dataclasses.field(default_factory=list)
    graph: Any = None
    calls: int = 0
    error: str = ""  # why there is no figure
    relative_error: float | None = None
    same_bits: bool | None = None  # as the simt kernel, for integer activations


def copies_of(size: int) -> int:
    return max(1, min(MOST_COPIES, -(-WORKING_SET // size)))


def event_seconds(torch: Any, work: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def median_seconds(torch: Any, work: Callable[[], Any], samples: int = 15) -> float:
    for _ in range(3):
        work()
    return statistics.median(event_seconds(torch, work) for _ in range(samples))


def limits(torch: Any) -> dict[str, float]:
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found = {"copy_bytes_per_s": 2 * source.numel() / median_seconds(torch, lambda: target.copy_(source))}
    n = 8192
    a = torch.randn(n, n, device="cuda").bfloat16()
    found["bf16_ops_per_s"] = 2 * n**3 / median_seconds(torch, lambda: a @ a)
    b = torch.randint(-127, 128, (n, n), dtype=torch.int8, device="cuda")
    found["int8_ops_per_s"] = 2 * n**3 / median_seconds(torch, lambda: torch._int_mm(b, b.t()))
    return found


class Layer:
    """Weights [N, K], quantised once for all numbers of rows."""

    def __init__(self, torch: Any, qcore: Any, shape: tuple[int, int], bits: int, g: int, scheme: str) -> None:
        self.shape, self.bits, self.g, self.scheme = shape, bits, g, scheme
        generator = torch.Generator(device="cuda").manual_seed(shape[0] * 7 + shape[1])
        self.w = torch.randn(*shape, device="cuda", generator=generator)
        weight = qcore.quantize(self.w.cpu().numpy(), bits=bits, block_size=g, scheme=scheme)
        self.nbytes = weight.nbytes
        self.quantized = [weight.to("cuda") for _ in range(copies_of(weight.nbytes))]


class Case:
    """One layer and one number of rows: the contenders and what they should compute."""

    def __init__(self, torch: Any, layer: Layer, m: int) -> None:
        self.torch, self.layer, self.m = torch, layer, m
        self.shape, self.w, self.g = layer.shape, layer.w, layer.g
        n, k = self.shape
        self.x = torch.randn(m, k, device="cuda", generator=torch.Generator(device="cuda").manual_seed(m)).half()
        self.columns = slice(0, min(n, CHECKED_COLUMNS))
        self.rows = slice(0, min(m, CHECKED_ROWS))
        self.exact = self.x[self.rows].double() @ self.w[self.columns].double().t()
        self.contenders: list[Contender] = []

    def add(self, name: str, weights: list[Any], call: Callable[[Any], Any], size: int) -> None:
        self.contenders.append(Contender(name, lambda i: call(weights[i]), size, len(weights)))

    def add_qcore(self, qcore: Any, kernels: re.Pattern[str], modes: list[str]) -> None:
        torch = self.torch
        bits, g, weights, size = self.layer.bits, self.g, self.layer.quantized, self.layer.nbytes
        out = torch.empty(self.m, self.shape[0], dtype=torch.float16, device="cuda")
        for mode in modes:
            for row in qcore.kernels("linear"):
                if row.device != "cuda" or not row.available or not kernels.search(row.name):
                    continue

                def call(w: Any, mode: str = mode, kernel: str = row.name) -> Any:
                    with qcore.force_kernel("linear", kernel):
                        return qcore.linear(self.x, w, compute=mode, out=out)

                self.add(f"qcore {row.name} {mode} w{bits} g{g}", weights, call, size)

    def add_torch(self) -> None:
        torch, (n, k) = self.torch, self.shape
        x = self.x.bfloat16()
        dense = [self.w.bfloat16() for _ in range(copies_of(2 * n * k))]
        self.add("torch bf16", dense, lambda w: torch.nn.functional.linear(x, w), 2 * n * k)

        codes = [(self.w * 30).round().clamp(-127, 127).to(torch.int8) for _ in range(copies_of(n * k))]
        xq = (self.x * 30).round().clamp(-127, 127).to(torch.int8)
        self.add("torch _int_mm (codes given, int32 out)", codes, lambda w: torch._int_mm(xq, w.t()), n * k)

        if hasattr(torch, "float8_e4m3fn"):
            one = torch.ones((), device="cuda")
            small = [self.w.to(torch.float8_e4m3fn) for _ in range(copies_of(n * k))]
            x8 = self.x.to(torch.float8_e4m3fn)
            self.add(
                "torch fp8 _scaled_mm (codes given)",
                small,
                lambda w: torch._scaled_mm(x8, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
                n * k,
            )

        if hasattr(torch, "_weight_int4pack_mm") and self.g in (32, 64, 128, 256) and k % self.g == 0:
            pairs = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
            scales = torch.full((k // self.g, n, 2), 0.01, dtype=torch.bfloat16, device="cuda")
            packed = [torch._convert_weight_to_int4pack(pairs, 8) for _ in range(copies_of(n * k // 2))]
            self.add(
                f"torch int4 weight-only g{self.g} (random codes)",
                packed,
                lambda w: torch._weight_int4pack_mm(x, w, self.g, scales),
                n * k // 2 + scales.numel() * 2,
            )

    def check(self, contender: Contender) -> None:
        """Relative L2 error of the first rows and columns against float64."""
        if "given" in contender.name or "random" in contender.name:
            return
        y = contender.call(0)[self.rows, self.columns].double()
        contender.relative_error = float((y - self.exact).norm() / self.exact.norm())

    def capture(self, contender: Contender) -> None:
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            once = median_seconds(torch, lambda: contender.call(0), 5)
            contender.calls = max(contender.copies, min(1024, int(GRAPH_SECONDS / once) + 1))
            contender.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(contender.graph, stream=stream):
                for i in range(contender.calls):
                    contender.call(i % contender.copies)
        torch.cuda.current_stream().wait_stream(stream)

    def prepare(self) -> None:
        torch = self.torch
        for contender in self.contenders:
            try:
                self.check(contender)
                self.capture(contender)
            except Exception as error:  # a peer that does not take the case is a line of the report
                contender.graph, contender.error = None, f"{type(error).__name__}: {error}".splitlines()[0]
                torch.cuda.synchronize()
        for mode in ("int8", "int8_asym", "int16"):
            same = [c for c in self.contenders if c.name.startswith("qcore") and f" {mode} " in c.name and c.graph]
            reference = next((c for c in same if " simt " in c.name), None)
            if not reference:
                continue
            expected = reference.call(0).clone()
            for contender in same:
                contender.same_bits = bool(torch.equal(contender.call(0), expected))

    def measure(self, rounds: int) -> None:
        for _ in range(rounds):
            for contender in self.contenders:
                if contender.graph:
                    seconds = event_seconds(self.torch, contender.graph.replay)
                    contender.samples.append(seconds / contender.calls)

    def report(self, found: dict[str, float]) -> dict[str, Any]:
        n, k = self.shape
        rows = []
        bf16 = next((c for c in self.contenders if c.name == "torch bf16" and c.samples), None)
        for contender in self.contenders:
            row: dict[str, Any] = {"name": contender.name, "error": contender.error}
            if contender.samples:
                # The first replay warms up.
                seconds = statistics.median(contender.samples[1:] or contender.samples)
                moved = contender.weight_bytes + self.m * (k + n) * 2
                row |= {
                    "us": seconds * 1e6,
                    "bytes": moved,
                    "copy_fraction": moved / seconds / found["copy_bytes_per_s"],
                    "int8_fraction": 2 * self.m * n * k / seconds / found["int8_ops_per_s"],
                    "over_bf16": statistics.median(bf16.samples) / seconds if bf16 else None,
                    "relative_error": contender.relative_error,
                    "same_bits_as_simt": contender.same_bits,
                }
            rows.append(row)
        layer = self.layer
        return {"n": n, "k": k, "m": self.m, "bits": layer.bits, "g": layer.g, "scheme": layer.scheme, "rows": rows}


def print_case(case: dict[str, Any]) -> None:
    print(f"\nN={case['n']} K={case['k']} M={case['m']} w{case['bits']} g{case['g']} {case['scheme']}")
    for row in sorted(case["rows"], key=lambda r: r.get("us", float("inf"))):
        if "us" not in row:
            print(f"  {row['name']:48} {row['error']}")
            continue
        ratio = f"{row['over_bf16']:6.2f}x bf16" if row["over_bf16"] else ""
        error = "" if row["relative_error"] is None else f"error {row['relative_error']:.2e}"
        bits = {None: "", True: "same bits", False: "DIFFERENT BITS"}[row["same_bits_as_simt"]]
        print(
            f"  {row['name']:48} {row['us']:10.2f} us {row['copy_fraction']:6.1%} of copy "
            f"{row['int8_fraction']:6.1%} of int8 {ratio} {error} {bits}"
        )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and one shape")
    parser.add_argument("--shape", action="append", help="NxK; may be repeated")
    parser.add_argument("--m", action="append", type=int, help="rows; may be repeated")
    parser.add_argument("--bits", action="append", type=int, choices=(4, 8))
    parser.add_argument("--g", action="append", type=int, help="block size; may be repeated")
    parser.add_argument("--scheme", default="symmetric", choices=("symmetric", "asymmetric"))
    parser.add_argument("--compute", action="append", choices=("int8", "int8_asym", "int16", "float"))
    parser.add_argument("--kernels", default=".", help="regular expression over qcore's kernel names")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="written after every case")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        import torch
    except ImportError:
        print("gpu_linear: torch is not installed", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("gpu_linear: torch finds no CUDA device", file=sys.stderr)
        return 2
    import qcore

    shapes = [tuple(map(int, text.split("x"))) for text in options.shape or ()]
    shapes = shapes or list(SHAPES[:1] if options.quick else SHAPES)
    found = limits(torch)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "qcore": qcore.__version__,
        "python": platform.python_version(),
        "limits": found,
        "cases": [],
    }
    print(f"{results['device']}: " + ", ".join(f"{name} {value:.3e}" for name, value in found.items()))
    broken = False
    for shape in shapes:
        for g in options.g or ((128,) if options.quick else (32, 64, 128)):
            for bits in options.bits or (4, 8):
                layer = Layer(torch, qcore, (shape[0], shape[1]), bits, g, options.scheme)
                for m in options.m or (QUICK_ROWS if options.quick else ROWS):
                    case = Case(torch, layer, m)
                    case.add_qcore(qcore, re.compile(options.kernels), options.compute or ["int8", "float"])
                    case.add_torch()
                    case.prepare()
                    case.measure(options.rounds)
                    report = case.report(found)
                    results["cases"].append(report)
                    print_case(report)
                    broken |= any(row.get("same_bits_as_simt") is False for row in report["rows"])
                    if options.json:
                        options.json.write_text(json.dumps(results, indent=1) + "\n")
                    del case
                    torch.cuda.empty_cache()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
