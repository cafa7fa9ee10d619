#!/usr/bin/env python3
"""Times the CUDA kernels of conv2d and static beside those of torch on one device, and checks them in the same run.

    pip install '.[test]' torch           # with QCORE_CUDA=on
    python benchmarks/gpu_conv.py --json benchmarks/results/gpu-conv.json
    python benchmarks/gpu_conv.py --case 8x128x28x28 --kernels implicit_gemm

Graphs, interleaving and medians as in gpu_linear.py, whose parts it uses; each call finds its weight in the
second-level cache. Images are channels_last for everybody, in fp16 for qcore's conv2d; torch chooses its algorithms
with cudnn.benchmark. Every kernel of qcore is compared with its `direct` row: bit for bit, float activations within
a thousandth of the largest result.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from gpu_linear import Contender, event_seconds, limits, median_seconds

# x's shape, the weight's, groups; padding keeps the extents
CASES = (
    ((1, 64, 56, 56), (64, 64, 3, 3), 1),
    ((1, 256, 14, 14), (256, 256, 3, 3), 1),
    ((8, 128, 28, 28), (128, 128, 3, 3), 1),
    ((1, 512, 14, 14), (2048, 512, 1, 1), 1),
    ((64, 128, 28, 28), (128, 128, 3, 3), 1),
    ((1, 256, 28, 28), (256, 1, 3, 3), 256),
    ((1, 256, 28, 28), (512, 256, 1, 1), 1),
)
CALLS = 64  # in a graph


def times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


class Case:
    def __init__(self, torch: Any, qcore: Any, x: tuple[int, ...], w: tuple[int, ...], groups: int) -> None:
        self.torch, self.qcore, self.groups, self.padding = torch, qcore, groups, w[2] // 2
        self.name = f"{times(x)}_w{times(w)}"
        generator = torch.Generator(device="cuda").manual_seed(7)
        self.x = torch.randn(*x, device="cuda", generator=generator).to(memory_format=torch.channels_last)
        self.w = torch.randn(*w, device="cuda", generator=generator)
        self.operations = 2 * x[0] * x[2] * x[3] * w[0] * w[1] * w[2] * w[3]
        self.contenders: list[Contender] = []
        self.expected: dict[str, Any] = {}  # of the rows of one family

    def add(self, name: str, call: Any) -> None:
        self.contenders.append(Contender(name, lambda _: call(), 0, 1))

    def add_torch(self) -> None:
        torch = self.torch
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            x = self.x.to(dtype)
            w = self.w.to(dtype).to(memory_format=torch.channels_last)
            self.add(
                f"torch {str(dtype)[6:]}",
                lambda x=x, w=w: torch.nn.functional.conv2d(x, w, padding=self.padding, groups=self.groups),
            )

    def rows(self, op: str, kernels: re.Pattern[str]) -> list[str]:
        return [
            row.name
            for row in self.qcore.kernels(op)
            if row.device == "cuda" and row.available and kernels.search(row.name)
        ]

    def add_conv2d(self, kernels: re.Pattern[str], bits: int, g: int) -> None:
        torch, qcore = self.torch, self.qcore
        weight = qcore.quantize(self.w.cpu().numpy(), bits=bits, block_size=g).to("cuda")
        x = self.x.half()
        for mode in ("float", "int8", "int8_asym"):
            family = f"qcore conv2d {mode} w{bits} g{g}"
            for kernel in self.rows("conv2d", kernels):

                def call(mode: str = mode, kernel: str = kernel, out: Any = None) -> Any:
                    with qcore.force_kernel("conv2d", kernel):
                        return qcore.conv2d(x, weight, padding=self.padding, groups=self.groups, compute=mode, out=out)

                self.add_row(family, kernel, call, exact=mode != "float")
        torch.cuda.synchronize()

    def add_static(self, kernels: re.Pattern[str]) -> None:
        qcore = self.qcore
        x = (self.x * 40 + 128).round().clamp(0, 255).to(self.torch.uint8)
        layer = qcore.static.QConv2d.from_float(
            1 / 40, 128, self.w.cpu().numpy(), 0.5, 128, padding=self.padding, groups=self.groups
        ).to("cuda")
        for kernel in self.rows("static", kernels):

            def call(kernel: str = kernel, out: Any = None) -> Any:
                with qcore.force_kernel("static", kernel):
                    return layer(x, out=out)

            self.add_row("qcore static", kernel, call)

    def add_row(self, family: str, kernel: str, call: Any, exact: bool = True) -> None:
        """One of qcore's kernels, if it takes the case, compared with `direct`."""
        try:
            if family not in self.expected:
                self.expected[family] = call(kernel="direct")
            y = call()
        except self.qcore.QcoreValueError:
            return
        out = self.torch.empty_like(y)
        self.add(f"{family} {kernel}", lambda: call(out=out))
        expected = self.expected[family]
        if exact:
            self.contenders[-1].same_bits = bool(self.torch.equal(y, expected))
        elif float((y - expected).abs().max()) > 1e-3 * float(expected.abs().max()):
            self.contenders[-1].same_bits = False

    def capture(self, contender: Contender) -> None:
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            once = median_seconds(torch, lambda: contender.call(0), 5)
            contender.calls = max(2, min(CALLS, int(2e-3 / once) + 1))
            contender.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(contender.graph, stream=stream):
                for _ in range(contender.calls):
                    contender.call(0)
        torch.cuda.current_stream().wait_stream(stream)

    def measure(self, rounds: int) -> None:
        for contender in self.contenders:
            self.capture(contender)
        for _ in range(rounds):
            for contender in self.contenders:
                contender.samples.append(event_seconds(self.torch, contender.graph.replay) / contender.calls)

    def report(self, found: dict[str, float]) -> dict[str, Any]:
        # The first replay warms up.
        seconds = {c.name: statistics.median(c.samples[1:] or c.samples) for c in self.contenders}
        fastest = min(time for name, time in seconds.items() if name.startswith("torch"))
        rows = [
            {
                "name": c.name,
                "us": 1e6 * seconds[c.name],
                "over_torch": fastest / seconds[c.name],
                "int8_fraction": self.operations / seconds[c.name] / found["int8_ops_per_s"],
                "same_bits_as_direct": c.same_bits,
            }
            for c in self.contenders
        ]
        return {"case": self.name, "groups": self.groups, "rows": rows}


def print_case(case: dict[str, Any]) -> None:
    print(f"\n{case['case']} groups {case['groups']}")
    for row in sorted(case["rows"], key=lambda r: r["us"]):
        bits = {None: "", True: "same bits", False: "DIFFERENT BITS"}[row["same_bits_as_direct"]]
        print(
            f"  {row['name']:44} {row['us']:10.2f} us {row['int8_fraction']:6.1%} of int8 "
            f"{row['over_torch']:6.2f}x torch's fastest {bits}"
        )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", help="part of a case's name, e.g. 8x128x28x28")
    parser.add_argument("--kernels", default=".", help="regular expression over qcore's kernel names")
    parser.add_argument("--bits", action="append", type=int, choices=(4, 8))
    parser.add_argument("--g", action="append", type=int, help="block size; may be repeated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="written after every case")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        import torch
    except ImportError:
        print("gpu_conv: torch is not installed", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("gpu_conv: torch finds no CUDA device", file=sys.stderr)
        return 2
    import qcore
    import qcore.static

    torch.backends.cudnn.benchmark = True
    found = limits(torch)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "qcore": qcore.__version__,
        "python": platform.python_version(),
        "limits": found,
        "cases": [],
    }
    kernels, same = re.compile(options.kernels), True
    for x, w, groups in CASES:
        case = Case(torch, qcore, x, w, groups)
        if options.case not in case.name:
            continue
        case.add_torch()
        for bits in options.bits or (8, 4):
            for g in options.g or (64, 128):
                case.add_conv2d(kernels, bits, g)
        case.add_static(kernels)
        case.measure(options.rounds)
        results["cases"].append(case.report(found))
        print_case(results["cases"][-1])
        same &= all(c.same_bits is not False for c in case.contenders)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
        del case
        torch.cuda.empty_cache()
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
