#!/usr/bin/env python3
"""Lists the CUDA kernels in a library or object: registers, stack, shared memory, local and tensor-core instructions.

    pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm      # unless a CUDA toolkit has them on PATH
    python tests/cuda_host/check_sass.py build/src/libqcore.so

Fails if one of our kernels is missing from a target, uses local memory (spilled registers, arrays indexed at run time)
or lacks an instruction that it is built around, or if a CUTLASS kernel holds no integer tensor-core instruction.
"""

import argparse
import collections
import fnmatch
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

# How often each kernel of ours is instantiated, per target.
OWN_KERNELS = {
    "attention_kernel": 48,
    "awq_arithmetic_kernel": 1,
    "awq_columns_kernel": 1,
    "awq_pack_codes_kernel": 1,
    "awq_pack_parameters_kernel": 1,
    "awq_rows_kernel": 1,
    "cap_kernel": 1,
    "conv2d_depthwise_kernel": 12,
    "conv2d_simt_float_kernel": 2,
    "conv2d_simt_integer_kernel": 2,
    "dequantize_accumulate_kernel": 1,
    "lut16_kernel": 1,
    "embedding_kernel": 1,
    "embedding_encoded_kernel": 1,
    "expand_codes_kernel": 7,
    "expand_parameters_kernel": 1,
    "sm80_float_gemv_kernel": 8,
    "sm80_float_mma_kernel": 114,
    "sm80_int8_mma_kernel": 44,
    "sm80_int8_mma16_kernel": 14,
    "gate_kernel": 4,
    "gate_pairs_kernel": 12,
    "gate_quantize_kernel": 24,
    "gather_rows_kernel": 1,
    "gru_cell_kernel": 1,
    "gemv_encoded_kernel": 14,
    "gemv_float_kernel": 12,
    "gemv_int8_kernel": 8,
    "gemv_int8_ahead_kernel": 6,
    "gemv_integer_kernel": 4,
    "grouped_int8_mma_kernel": 2,
    "recurrent_codes_kernel": 1,
    "recurrent_input_kernel": 8,
    "recurrent_long_input_kernel": 4,
    "recurrent_pack_kernel": 1,
    "recurrent_persistent_kernel": 16,
    "recurrent_row_kernel": 9,
    "recurrent_single_step_kernel": 12,
    "recurrent_step_kernel": 32,
    "heads_kernel": 12,
    "sm90_int8_mma_kernel": 101,
    "lut_kernel": 21,
    "lut_strided_kernel": 7,
    "lstm_cell_kernel": 1,
    "lstm_projection_kernel": 1,
    "merge_kernel": 1,
    "norm_quantize_kernel": 6,
    "norm_strided_kernel": 2,
    "norm_vectors_kernel": 6,
    "grouped_gemv_kernel": 8,
    "place_rows_kernel": 1,
    "quantize_activations_kernel": 2,
    "quantize_columns_kernel": 1,
    "quantize_long_kernel": 6,
    "rms_norm_kernel": 8,
    "simt_float_kernel": 2,
    "simt_integer_kernel": 2,
    "softmax_kernel": 8,
    "split_rows_kernel": 1,
    "static_depthwise_kernel": 4,
    "static_simt_kernel": 1,
    "static_gemm_kernel": 8,
    "static_pack_kernel": 1,
    "static_wgmma_kernel": 4,
    "unpack_weight_kernel": 1,
    "quantize_aligned_kernel": 2,
    "quantize_dense_kernel": 2,
    "weight_sums_kernel": 1,
    "row_sums_kernel": 1,
    "sm90_float_wgmma_kernel": 60,
    "sm90_int8_wgmma_kernel": 46,
}
NOT_FOR = {
    "sm_75": {
        "sm80_float_gemv_kernel",
        "sm80_float_mma_kernel",
        "sm80_int8_mma_kernel",
        "sm80_int8_mma16_kernel",
        "grouped_int8_mma_kernel",
        "gemv_int8_ahead_kernel",
        "grouped_gemv_kernel",
        "place_rows_kernel",
        "sm90_float_wgmma_kernel",
        "sm90_int8_mma_kernel",
        "sm90_int8_wgmma_kernel",
        "static_wgmma_kernel",
    },
    "sm_80": {
        "gemv_int8_ahead_kernel",
        "grouped_gemv_kernel",
        "place_rows_kernel",
        "sm90_float_wgmma_kernel",
        "sm90_int8_mma_kernel",
        "sm90_int8_wgmma_kernel",
        "static_wgmma_kernel",
    },
}
# What a kernel must hold. Asynchronous copies are plain ones before sm_80.
MEANT = {
    "conv2d_depthwise_kernel": ("FFMA",),
    "attention_kernel": ("LDGSTS", "LDS*.128", "FFMA"),
    "awq_columns_kernel": ("LOP3", "HFMA2", "STG*.128"),
    "awq_pack_codes_kernel": ("STG*.128",),
    "awq_rows_kernel": ("LOP3", "HFMA2", "STG*.128"),
    "lut16_kernel": ("LDG*.128", "STG*.128", "LDS*U16"),
    "sm80_float_gemv_kernel": ("HMMA.16816.F32", "LDG*.128", "LDS*.128", "LDGSTS"),
    "sm80_float_mma_kernel": ("HMMA.16816.F32", "LDGSTS"),
    "sm80_int8_mma_kernel": ("IMMA.16832.U8.S8", "LDGSTS"),
    "sm80_int8_mma16_kernel": ("IMMA.16816.S8.S8", "LDSM*.M88.4", "LDGSTS"),
    "gemv_encoded_kernel": ("IMMA.16832.U8.S8", "LDS*.128", "LDGSTS"),
    "gemv_float_kernel": ("LDG*.128", "FFMA", "LDGSTS"),
    "gemv_int8_ahead_kernel": ("IMMA.16832.S8.S8", "LDS*.128", "UBLKCP"),
    "gemv_int8_kernel": ("IMMA.16832.S8.S8", "LDG*.128", "LDS*.128"),
    "gemv_integer_kernel": ("IMMA.16832.U8.S8", "LDG*.128", "LDGSTS"),
    "grouped_gemv_kernel": ("IMMA.16832.S8.S8", "LDS*.128", "UBLKCP"),
    "grouped_int8_mma_kernel": ("IMMA.16832.U8.S8", "LDGSTS"),
    "recurrent_input_kernel": ("IMMA.16832.S8", "LDG*.128"),
    "recurrent_long_input_kernel": ("IMMA.16832.S8", "LDG*.128"),
    "recurrent_persistent_kernel": ("IMMA.16832.S8", "LDG*.128", "LDS*.128"),
    "recurrent_row_kernel": ("IMMA.16832.S8", "LDG*.128", "LDS*.128", "LDGSTS"),
    "recurrent_single_step_kernel": ("IMMA.16832.S8", "LDG*.128", "LDS*.128"),
    "recurrent_step_kernel": ("IMMA.16832.S8", "LDG*.128"),
    "sm90_int8_mma_kernel": ("IMMA.16832.S8.S8", "LDGSTS"),
    "sm90_int8_mma_kernelINS0_8GemmRows": ("UBLKCP",),  # a window's rows are gathered
    "norm_vectors_kernel": ("LDG*.128", "STG*.128", "FFMA"),
    "lut_kernel": ("LDG*.128", "STG*.128", "LDS", "FFMA"),
    "simt_integer_kernel": ("IDP.2A",),
    "quantize_aligned_kernel": ("LDG*.128", "IDP.4A"),
    "quantize_dense_kernel": ("LDG*.128", "IDP.4A"),
    "static_depthwise_kernel": ("IDP.4A",),
    "static_gemm_kernel": ("IMMA.16832.S8", "LDGSTS"),
    "static_pack_kernel": ("STG*.128",),
    "static_wgmma_kernel": ("IGMMA.64x", "UTMALDG.2D", "UTMALDG.4D.IM2COL"),
    "weight_sums_kernel": ("IDP.4A",),
    "sm90_float_wgmma_kernel": ("HGMMA.64x64x16.F32", "UTMALDG.2D", "FFMA", "LOP3"),
    "sm90_int8_wgmma_kernelINS0_8GemmRows": ("IGMMA.64x", "UBLKCP", "UTMALDG", "I2FP"),
    "sm90_int8_wgmma_kernelINS0_10Im2colRows": ("IGMMA.64x", "UTMALDG.2D", "UTMALDG.4D.IM2COL", "LDGSTS", "I2FP"),
}
ON_SM75 = {
    "IMMA.16832.U8.S8": "IMMA.8816.U8.S8",
    "IMMA.16832.S8.S8": "IMMA.8816.S8.S8",
    "IMMA.16832.S8": "IMMA.8816.S8",
    "LDGSTS": "",
}
SHOWN = ("IMMA", "HMMA", "IDP", "LDGSTS", "LDSM", "LOP3", "PRMT", "I2F")
# How many instructions may load or store local memory. In sm90_float_wgmma, totals, sums and two steps' weights take
# 224 of 240 registers, and offsets some more; in blocks of 128 the loops of weights without offsets or with zero
# points have none. Kernels that quantize rows store a few registers once, outside their loops, so that more thread
# blocks fit on a multiprocessor.
MAY_SPILL = {
    "sm90_float_wgmma_kernel": 40,
    "quantize_long_kernel": 11,
    "norm_quantize_kernel": 2,
}
CUTLASS_KERNELS = {"sm_75": 2, "sm_80": 2, "sm_90": 2}
TARGETS = ("sm_75", "sm_80", "sm_90")
TENSOR_CORE = {"sm_75": "IMMA.8816.*.S8", "sm_80": "IMMA.16832.*.S8", "sm_90": "IMMA.16832.*.S8"}


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
            rest = symbol[at + len(kernel) :].split("Ev", 1)[0]
            names = {"Ia": ["int8"], "Is": ["int16"]}
            arguments = names.get(rest[:2]) or re.findall(r"L(?:[ib]|N\w*?E)(\d+)E", rest)
            return kernel + (f"<{', '.join(arguments)}>" if arguments else "")
    shapes = re.findall(r"GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E", symbol)
    if "cutlass" in symbol and shapes:
        return "cutlass int8 GEMM, tile " + "x".join(shapes[0])
    return symbol


class InFlight:
    """Registers of warpgroups' products that run: the compiler must not let other instructions write to them.

    Between products of one group nothing should be moved to uniform registers: operands' addresses lie there from the
    start, unless the compiler doesn't know that a warp's lanes agree about them.
    """

    def __init__(self) -> None:
        self.registers: set[int] = set()
        self.written: list[str] = []
        self.moves = self.moved = 0  # since the last product, and between products

    def see(self, instruction: str) -> None:
        if match := re.match(r"[HI]GMMA\.64x(\d+)x\S+ R(\d+), R(\d+),", instruction):
            columns, sums, operand = map(int, match.groups())
            self.moved += self.moves if self.registers else 0
            self.moves = 0
            self.registers |= {*range(sums, sums + columns // 2), *range(operand, operand + 4)}
        elif instruction.startswith("WARPGROUP.DEPBAR"):
            self.registers.clear()
        elif instruction.startswith("R2UR"):
            self.moves += 1
        elif match := re.match(r"([A-Z][\w.]*) R(\d+),", instruction):
            opcode, first = match[1], int(match[2])
            count = 4 if ".128" in opcode else 2 if ".64" in opcode or ".WIDE" in opcode else 1
            if self.registers.intersection(range(first, first + count)):
                self.written.append(instruction)


def kernels_of(cuobjdump: str, path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    kernels: dict[tuple[str, str], dict[str, Any]] = collections.defaultdict(dict)
    target = symbol = ""
    for line in subprocess.check_output([cuobjdump, "-res-usage", path], text=True).splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            target = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            symbol = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            registers, stack, shared = map(int, match.groups())
            kernels[target, symbol] |= {"registers": registers, "stack": stack, "shared": shared, "local": 0}
            kernels[target, symbol] |= {"opcodes": collections.Counter(), "in_flight": InFlight()}
    for line in subprocess.check_output([cuobjdump, "-sass", path], text=True).splitlines():
        if match := re.match(r"\s*arch = (sm_\d+)", line):
            target = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            symbol = match[1]
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(([A-Z][\w.]*).*)", line):
            kernel = kernels[target, symbol]
            kernel["in_flight"].see(" ".join(match[1].split()))
            kernel["opcodes"][match[2]] += 1
            kernel["local"] += match[2].startswith(("STL", "LDL"))
    return kernels


def holds(kernel: dict[str, Any], opcode: str) -> bool:
    return any(fnmatch.fnmatchcase(found, f"{opcode}*") for found in kernel["opcodes"])


def problems_of(kernels: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    problems = []
    for target in TARGETS:
        symbols = [symbol for at, symbol in kernels if at == target]
        for kernel, instances in OWN_KERNELS.items():
            expected = 0 if kernel in NOT_FOR.get(target, ()) else instances
            # A mangled name follows its length: kernels whose names end like this one do not count.
            count = sum(f"{len(kernel)}{kernel}" in symbol for symbol in symbols)
            if count != expected:
                problems.append(f"{target}: {kernel} is there {count} times, expected {expected}")
        for symbol in symbols:
            most = next((count for name, count in MAY_SPILL.items() if name in symbol), 0)
            if kernels[target, symbol]["local"] > most:
                problems.append(f"{target}: {short_name(symbol)} loads or stores local memory")
            for instruction in kernels[target, symbol]["in_flight"].written[:1]:
                problems.append(
                    f"{target}: {short_name(symbol)} writes to registers of a product that runs: {instruction}"
                )
            if moved := kernels[target, symbol]["in_flight"].moved:
                problems.append(
                    f"{target}: {short_name(symbol)} moves {moved} addresses of operands to uniform registers between "
                    "products"
                )
            for own, opcodes in MEANT.items():
                meant = [ON_SM75.get(opcode, opcode) if target == "sm_75" else opcode for opcode in opcodes]
                for opcode in meant if own in symbol else ():
                    if not holds(kernels[target, symbol], opcode):
                        problems.append(f"{target}: {short_name(symbol)} holds no {opcode}")
        cutlass = [symbol for symbol in symbols if "cutlass" in symbol]
        if len(cutlass) != CUTLASS_KERNELS[target]:
            problems.append(f"{target}: {len(cutlass)} CUTLASS kernels, expected {CUTLASS_KERNELS[target]}")
        for symbol in cutlass:
            if not holds(kernels[target, symbol], TENSOR_CORE[target]):
                problems.append(f"{target}: {short_name(symbol)} holds no {TENSOR_CORE[target]}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="libqcore.so, or one object")
    parser.add_argument("--list-only", action="store_true", help="check nothing")
    options = parser.parse_args()

    cuobjdump = find_cuobjdump()
    kernels = kernels_of(cuobjdump, options.path)
    print("| target | kernel | registers | stack | static shared | local ld/st | instructions |")
    print("|---|---|---|---|---|---|---|")
    for (target, symbol), kernel in sorted(kernels.items(), key=lambda item: (short_name(item[0][1]), item[0][0])):
        shown = [
            f"{sum(n for opcode, n in kernel['opcodes'].items() if opcode.split('.')[0] == name)} {name}"
            for name in SHOWN
            if holds(kernel, name)
        ]
        numbers = (kernel[key] for key in ("registers", "stack", "shared", "local"))
        row = (target, short_name(symbol), *numbers, ", ".join(shown))
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
