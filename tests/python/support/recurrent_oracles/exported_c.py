"""Builds and runs exported C headers, and measures what they compile to."""

import platform
import shutil
import subprocess
from pathlib import Path

COMPILER = shutil.which("gcc") or shutil.which("cc")
ARM = shutil.which("arm-none-eabi-gcc")
QEMU = shutil.which("qemu-system-arm")
BOARD = Path(__file__).resolve().parents[4] / "examples/mcu"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
SANITIZED = ["-O1", "-fsanitize=undefined,address", "-fno-sanitize-recover=all"]

MODEL = """#include "net.h"
void start(net_state *state) { net_start(state); }
void step(net_state *state, const net_x *x, net_h *y) { net_step(state, x, y); }
char state_bytes[sizeof(net_state) == NET_STATE_BYTES ? 1 : -1];
"""


def called(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(program, flags=("-O2",)):
    binary = program.with_suffix("")
    called([COMPILER, *STRICT, *flags, program, "-o", binary])
    return binary


def run(binary):
    done = subprocess.run([binary], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def constants_and_variables(folder, compiler, flags):
    """Return the bytes of constants and of variables of net.h's object, and those of stack of its functions."""
    (folder / "model.c").write_text(MODEL)
    called([compiler, *STRICT, *flags, "-fstack-usage", "-c", folder / "model.c", "-o", folder / "model.o"])
    constants, variables = 0, 0
    for line in called([compiler.removesuffix("gcc") + "size", "-A", folder / "model.o"]).splitlines():
        name, *numbers = line.split() or [""]
        if name.startswith((".rodata", ".data.rel.ro")):
            constants += int(numbers[0])
        elif name.startswith((".data", ".bss", ".tbss")):
            variables += int(numbers[0])
    stack = sum(int(line.split("\t")[1]) for line in (folder / "model.su").read_text().splitlines())
    return constants, variables, stack


def check_sizes(folder, sizes, target):
    """Compare what an export of the name "net" said with the sections of its object.

    Without optimization every array and description is there as it was written, between gaps of less than its
    alignment; built for size, the description of a single layer may be part of the code instead.
    """
    gaps = 8 * (folder / "net.h").read_text().count("\nstatic const ")
    if target == "x86":
        compiler, flags = "gcc", ["-fno-pie"]
        # Pointers have twice the bytes: four arrays, wx_offsets and rh_offsets, and at most two of each table.
        gaps += 8 * 20 * (folder / "net.h").read_text().count(".wx_offsets = ") if platform.machine() == "x86_64" else 0
    else:
        compiler, flags = ARM, [f"-mcpu={target}", "-mthumb"]
    constants, variables, _ = constants_and_variables(folder, compiler, [*flags, "-O0"])
    assert sizes.flash <= constants <= sizes.flash + gaps
    assert variables == 1  # state_bytes above: the header has none
    constants, variables, stack = constants_and_variables(folder, compiler, [*flags, "-Os"])
    assert sizes.flash - sizes.layers <= constants <= sizes.flash + gaps
    assert variables == 1
    if target != "x86":
        assert stack <= sizes.stack, (folder / "model.su").read_text()


# Flags of the compiler, qemu's board, and the instructions for which an export has loops.
BOARDS = {
    "cortex-m4": (["-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"], "mps2-an386", ("smlad", "smlald")),
    "cortex-m55": (["-mfloat-abi=hard"], "mps3-an547", ("vmladava", "vmlaldava")),
}


def run_on_board(program, cpu):
    """Build a program for an emulated board of examples/mcu, with DSP instructions or MVE, and run it."""
    flags, board, instructions = BOARDS[cpu]
    compiler = [ARM, *STRICT, "-O2", f"-mcpu={cpu}", "-mthumb", *flags]
    # Not the disassembler, which does not know the instructions of MVE.
    assert any(name in called([*compiler, "-S", program, "-o", "-"]) for name in instructions)
    libraries = ["--specs=nano.specs", "--specs=rdimon.specs", f"-T{BOARD / 'cortex_m.ld'}"]
    binary = program.with_suffix(".elf")
    called([*compiler, *libraries, BOARD / "cortex_m.c", program, "-o", binary])
    quiet = ["-display", "none", "-monitor", "none", "-serial", "none", "-semihosting-config"]
    command = [QEMU, "-M", board, *quiet, "enable=on,target=native", "-kernel", binary]
    # One board's C library prints to standard error.
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    return done.returncode, done.stdout
