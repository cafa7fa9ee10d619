"""Export a quantized GRU, an LSTM and a table as C99, build them for this machine and for Arm, run them.

    pip install libqcore; apt install gcc gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
    python examples/mcu/export.py

The GRU is that of the digits model which `qcore demo` ships: 64 inputs, 96 states, one step for each row of an image.
An LSTM of 32 states with random weights takes the same inputs.

The self-tests hold the C against the library's results, number by number. Without the Arm compiler or qemu that part
is left out, and said so; --arm makes it an error.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from qcore import lut
from qcore.demo.data import load
from qcore.gru import Calibrator, Config, GruWeights
from qcore.lstm import Calibrator as LstmCalibrator
from qcore.lstm import LstmWeights, QuantLSTM

HERE = Path(__file__).resolve().parent
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Os"]
CORTEX_M4 = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-fno-math-errno"]
CORTEX_M55 = ["-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard", "-fno-math-errno"]
BARE_METAL = ["--specs=nano.specs", "--specs=rdimon.specs", f"-T{HERE / 'cortex_m.ld'}"]
QEMU = ["qemu-system-arm", "-display", "none", "-monitor", "none", "-serial", "none", "-semihosting-config"]
# The compiler's flags, qemu's board, and the megahertz of its SysTick.
BOARDS = {"Cortex-M4": (CORTEX_M4, "mps2-an386", 25), "Cortex-M55": (CORTEX_M55, "mps3-an547", 32)}
PLAIN = ("-U__ARM_FEATURE_DSP", "-U__ARM_FEATURE_MVE")


def run(command: list[str | Path], folder: Path) -> str:
    words = [str(part) for part in command]
    # A program that faults on the board would wait for ever.
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, cwd=folder, **output, text=True, check=False, timeout=300)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"mcu: {command[0]} ended with status {done.returncode}")
    return done.stdout


def row_features(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Return the input of the digits model's GRU, [8 rows, M, 64]: each value sums the nine products of a window."""
    x = images
    for name in ("conv1", "conv2"):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
        y = np.einsum("mcijhw,ochw->moij", windows, weights[f"{name}.weight"], optimize=True)
        x = np.maximum(y + weights[f"{name}.bias"][:, None, None], 0)
    rows = x.transpose(2, 0, 3, 1).reshape(8, len(x), -1)
    return np.maximum(rows @ weights["row.weight"].T + weights["row.bias"], 0).astype(np.float32)


def random_lstm(features: np.ndarray) -> QuantLSTM:
    """Return an LSTM of 32 states for the GRU's inputs."""
    rng = np.random.default_rng(0)
    inputs, size = features.shape[2], 32
    weights = LstmWeights.from_arrays(rng.normal(0, 0.2, (4 * size, inputs)), rng.normal(0, 0.2, (4 * size, size)))
    return LstmCalibrator(weights).observe(features[:, :270]).finish()


def write_expected(path: Path) -> None:
    """Return inputs and results of the table, as bits."""
    x = np.concatenate([np.linspace(-30, 30, 1999), [0.0, -0.0, 1e-30, 1e30, -1e30]]).astype(np.float32)
    lines = ["#include <stdint.h>\n"]
    for name, values in (("inputs", x), ("outputs", lut.silu(x))):
        bits = ", ".join(f"0x{word:08x}" for word in values.view(np.uint32))
        lines.append(f"static const uint32_t silu_{name}[] = {{{bits}}};\n")
    path.write_text("".join(lines))


def section_sizes(size: str, file: Path) -> dict[str, int]:
    """Return the bytes of code, constants and variables of an object file."""
    found = {"code": 0, "constants": 0, "variables": 0}
    for line in run([size, "-A", file], file.parent).splitlines():
        section, *numbers = line.split() or [""]
        for prefix, kind in (
            (".text", "code"),
            (".rodata", "constants"),
            (".data.rel.ro", "constants"),
            (".data", "variables"),
            (".bss", "variables"),
        ):
            if section.startswith(prefix):
                found[kind] += int(numbers[0])
                break
    return found


def on_board(board: str, folder: Path, binary: str, flags: list[str], files: list[str | Path], *emulator: str) -> str:
    """Build a program for an emulated board, run it, and return what it prints."""
    cpu, machine, _ = BOARDS[board]
    files = [HERE / "cortex_m.c", *files, "-lm", "-o", binary]
    run(["arm-none-eabi-gcc", *STRICT, *flags, *cpu, *BARE_METAL, f"-I{folder}", *files], folder)
    return run([*QEMU, "enable=on,target=native", "-M", machine, *emulator, "-kernel", binary], folder).strip()


def instructions(board: str, name: str, folder: Path, *flags: str) -> int:
    """Return the instructions of a step of an exported header on an emulated board."""
    names = {"HEADER": f'"{name}.h"', "INPUTS": f"{name.upper()}_INPUT_SIZE", "OUTPUTS": f"{name.upper()}_OUTPUT_SIZE"}
    names |= {part.upper(): f"{name}_{part}" for part in ("state", "x", "h", "start", "step")}
    names["TICKS_PER_MICROSECOND"] = str(BOARDS[board][2])
    macros = [f"-D{key}={value}" for key, value in names.items()]
    files = [HERE / "instructions.c"]
    return int(on_board(board, folder, "instructions.elf", ["-O2", *flags, *macros], files, "-icount", "shift=0"))


def show_sizes(target: str, size: str, file: Path) -> None:
    found = section_sizes(size, file)
    print(f"{target:<12}" + "".join(f"{found[kind]:>11,} {kind}" for kind in found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the C files; by default they are not kept")
    parser.add_argument("--arm", action="store_true", help="fail if the Arm compiler or qemu is missing")
    options = parser.parse_args()

    digits = load()
    features = row_features(digits.weights, digits.images)
    weights = GruWeights.from_state_dict(
        {name.removeprefix("gru."): value for name, value in digits.weights.items() if name.startswith("gru.")}
    )
    gru = Calibrator(weights).observe(features[:, :270]).finish(Config(bits=8, pipeline="fused"))

    with tempfile.TemporaryDirectory() as scratch:
        folder = options.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        gru_sizes = gru.export_c(folder / "gru.h", x=features[:, 270:286])
        lstm_sizes = random_lstm(features).export_c(folder / "lstm.h", x=features[:, 270:286])
        lut.table("silu").export_c(folder / "silu.h", name="silu")
        write_expected(folder / "silu_expected.h")
        print(f"exported {gru}, an LSTM and silu:")
        for file in ("gru.h", "lstm.h", "silu.h"):
            print(f"  {file}: {(folder / file).stat().st_size:,} bytes of C")

        for name, sizes in (("gru", gru_sizes), ("lstm", lstm_sizes)):
            print("\n  ".join([f"\n{name}", *sizes.lines()]))

        tests = {name: folder / f"{name}.c" for name in ("gru_selftest", "lstm_selftest")}
        tests |= {"silu_selftest": HERE / "silu_selftest.c"}
        print("\nthis machine, gcc -Os")
        for name, source in tests.items():
            run(["gcc", *STRICT, f"-I{folder}", source, "-lm", "-o", name], folder)
            print(f"  {run([folder / name], folder).strip()}")

        missing = [tool for tool in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(tool) is None]
        if missing:
            print(f"\nCortex-M4: LEFT OUT, {' and '.join(missing)} not installed")
        else:
            for board in BOARDS:
                print(f"\n{board} in qemu ({BOARDS[board][1]}), arm-none-eabi-gcc -Os")
                for name, source in tests.items():
                    # With MVE, binutils 2.40 takes a conditional vcvt of the table's code for vcvtn.
                    if board == "Cortex-M55" and name == "silu_selftest":
                        continue
                    print(f"  {on_board(board, folder, f'{name}.elf', [], [source])}")

            print("\ninstructions of a step, arm-none-eabi-gcc -O2: plain C, and with DSP instructions or MVE")
            for board, name in itertools.product(BOARDS, ("gru", "lstm")):
                counts = [instructions(board, name, folder, *flags) for flags in (PLAIN, ())]
                print(f"  {board}, {name}: {counts[0]:,} and {counts[1]:,}")

        print("\nbytes of all headers, compiled")
        run(["gcc", *STRICT, f"-I{folder}", "-c", HERE / "model.c", "-o", "model.o"], folder)
        show_sizes("x86-64", "size", folder / "model.o")
        if not missing:
            run(
                ["arm-none-eabi-gcc", *STRICT, *CORTEX_M4, f"-I{folder}", "-c", HERE / "model.c", "-o", "arm.o"], folder
            )
            show_sizes("Cortex-M4", "arm-none-eabi-size", folder / "arm.o")
    return 1 if missing and options.arm else 0


if __name__ == "__main__":
    sys.exit(main())
