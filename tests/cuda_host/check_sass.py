#!/usr/bin/env python3
"""Lists the CUDA kernels in a library or object: registers, stack, shared memory, local and tensor-core instructions.

    pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm      # unless a CUDA toolkit has them on PATH
    python tests/cuda_host/check_sass.py build/src/libqcore.so

Fails if one of our kernels is missing from a target or uses local memory (spilled registers, arrays indexed at run
time), or if a CUTLASS kernel holds no integer tensor-core instruction.
"""

import argparse
import collections
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

# How often each kernel of ours is instantiated, per target.
OWN_KERNELS = {
    "dequantize_accumulate_kernel": 1,
    "quantize_activations_kernel": 2,
    "simt_float_kernel": 2,
    "simt_integer_kernel": 2,
    "unpack_weight_kernel": 1,
    "weight_sums_kernel": 1,
}
CUTLASS_KERNELS = 2
TARGETS = ("sm_75", "sm_80", "sm_90")
TENSOR_CORE = {"sm_75": "IMMA.8816.S8.S8", "sm_80": "IMMA.16832.S8.S8", "sm_90": "IMMA.16832.S8.S8"}


def find_cuobjdump() -> str:
    places = [Path(p, "nvidia", "cu13", "bin") for p in [*site.getsitepackages(), site.getusersitepackages()]]
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin", *map(str, places)])
    found = shutil.which("cuobjdump", path=path)
    if not found:
        sys.exit("check_sass: no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    # It calls nvdisasm, which lies beside it.
    os.environ["PATH"] = os.pathsep.join([str(Path(found).parent), os.environ.get("PATH", "")])
    return found


def short_name(symbol: str) -> str:
    for kernel in OWN_KERNELS:
        at = symbol.find(kernel)
        if at >= 0:
            arguments = re.match(r"I(?:Li)?([as\d]+)E", symbol[at + len(kernel) :])
            names = {"a": "int8", "s": "int16"}
            return kernel + (f"<{names.get(arguments[1], arguments[1])}>" if arguments else "")
    shapes = re.findall(r"GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E", symbol)
    if "cutlass" in symbol and shapes:
        return "cutlass int8 GEMM, tile " + "x".join(shapes[0])
    return symbol


def kernels_of(cuobjdump: str, path: Path) -> dict[tuple[str, str], dict[str, int | str]]:
    kernels: dict[tuple[str, str], dict[str, int | str]] = collections.defaultdict(dict)
    target = symbol = ""
    for line in subprocess.check_output([cuobjdump, "-res-usage", path], text=True).splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            target = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            symbol = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            registers, stack, shared = map(int, match.groups())
            kernels[target, symbol] |= {"registers": registers, "stack": stack, "shared": shared, "local": 0, "mma": ""}
    for line in subprocess.check_output([cuobjdump, "-sass", path], text=True).splitlines():
        if match := re.match(r"\s*arch = (sm_\d+)", line):
            target = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            symbol = match[1]
        elif match := re.search(r"\b(STL|LDL|IMMA)\b[.\w]*", line):
            kernel = kernels[target, symbol]
            if match[1] == "IMMA":
                kernel["mma"] = match[0]
            else:
                kernel["local"] = int(kernel["local"]) + 1
    return kernels


def problems_of(kernels: dict[tuple[str, str], dict[str, int | str]]) -> list[str]:
    problems = []
    for target in TARGETS:
        symbols = [symbol for at, symbol in kernels if at == target]
        for kernel, expected in OWN_KERNELS.items():
            count = sum(kernel in symbol for symbol in symbols)
            if count != expected:
                problems.append(f"{target}: {kernel} is there {count} times, expected {expected}")
        for symbol in symbols:
            if kernels[target, symbol]["local"]:
                problems.append(f"{target}: {short_name(symbol)} loads or stores local memory")
        cutlass = [symbol for symbol in symbols if "cutlass" in symbol]
        if len(cutlass) != CUTLASS_KERNELS:
            problems.append(f"{target}: {len(cutlass)} CUTLASS kernels, expected {CUTLASS_KERNELS}")
        for symbol in cutlass:
            if not str(kernels[target, symbol]["mma"]).startswith(TENSOR_CORE[target]):
                problems.append(f"{target}: {short_name(symbol)} holds no {TENSOR_CORE[target]}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="libqcore.so, or one object")
    parser.add_argument("--list-only", action="store_true", help="check nothing")
    options = parser.parse_args()

    cuobjdump = find_cuobjdump()
    kernels = kernels_of(cuobjdump, options.path)
    print("| target | kernel | registers | stack | static shared | local ld/st | tensor core |")
    print("|---|---|---|---|---|---|---|")
    for (target, symbol), kernel in sorted(kernels.items(), key=lambda item: (short_name(item[0][1]), item[0][0])):
        row = (target, short_name(symbol), *(kernel[key] for key in ("registers", "stack", "shared", "local", "mma")))
        print("| " + " | ".join(map(str, row)) + " |")
    ptx = subprocess.check_output([cuobjdump, "-lptx", options.path], text=True)
    versions = sorted(set(re.findall(r"\.(sm_\d+)\.ptx", ptx)))
    print("PTX for:", ", ".join(versions) or "nothing")
    if options.list_only:
        return 0
    problems = problems_of(kernels)
    if versions != [TARGETS[-1]]:
        problems.append(f"PTX for {versions}, expected {TARGETS[-1]} alone")
    for problem in problems:
        print("check_sass:", problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
