"""The kernel table: choice, counting and forcing of kernels, from Python and from the environment."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from linear_calls import AVAILABLE, KERNELS, MODES, POISON, run

import qcore

ARM = platform.machine() in ("aarch64", "arm64")
CAPS = ["baseline", "generic128"]
CAPS += ["neon", "dotprod", "i8mm"] if ARM else ["avx2", "avxvnni", "avx512vnni", "amx"]
FEATURES = CAPS[2:]  # vectors of the compiler are none of the processor's
# The kernel of a few rows, for which AMX does not pay.
KERNEL_OF = {"dotprod": "int8_neon_dotprod", "i8mm": "int8_neon_i8mm", "amx": "int8_avx512vnni"}


def test_table_lists_the_reference_last():
    rows = qcore.kernels("linear")
    assert len({row.name for row in rows}) == len(rows)
    last = rows[-1]
    assert (last.op, last.name, last.device, last.available, last.needs) == (
        "linear",
        "reference",
        "cpu",
        True,
        "nothing",
    )
    text = f"KernelInfo(op='linear', name='reference', device='cpu', available=True, runs={last.runs})"
    assert repr(last) == text
    everything = qcore.kernels()
    assert [row.name for row in everything if row.op == "linear"] == [row.name for row in rows]
    assert {row.op for row in everything} == {
        "awq",
        "awq_linear",
        "conv2d",
        "decoder_attention",
        "decoder_gated_activation",
        "decoder_rms_norm",
        "decoder_rotary_embedding",
        "decoder_soft_cap",
        "decoder_write_cache",
        "dequantize",
        "embedding",
        "grouped_linear",
        "gru",
        "lstm",
        "hadamard",
        "linear",
        "lut",
        "quantize",
        "quantize_activations",
        "quantize_encoded",
        "rms_norm",
        "softmax",
        "static",
    }
    assert all(row.needs for row in everything)


@pytest.mark.parametrize("mode", MODES)
def test_best_kernel_is_chosen(mode):
    qcore.linear(np.ones((2, 8), np.float32), qcore.quantize(np.ones((3, 8), np.float32)), compute=mode)
    assert qcore.last_kernel("linear") == KERNELS[mode][0]
    if {"avx2", "neon"} & set(qcore.info()["isa"]):
        assert KERNELS[mode][0] != "reference"


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_available_kernel_runs_and_is_counted(name):
    modes = [mode for mode in MODES if name in KERNELS[mode]]
    assert modes, f"{name} takes no mode at all"

    def runs():
        return next(row.runs for row in qcore.kernels("linear") if row.name == name)

    before = runs()
    for mode in modes:
        run(name, np.ones((2, 8), np.float32), qcore.quantize(np.ones((3, 8), np.float32)), compute=mode)
    assert runs() == before + len(modes)


def test_force_kernel_nests_and_ends():
    x, weight = np.ones((1, 8), np.float32), qcore.quantize(np.ones((1, 8), np.float32))

    def chosen():
        qcore.linear(x, weight)
        return qcore.last_kernel("linear")

    free, slow = chosen(), KERNELS["int8"][-1]
    other = KERNELS["int8"][len(KERNELS["int8"]) // 2]  # the same one where there is no other
    with qcore.force_kernel("linear", slow) as outer:
        assert chosen() == slow
        with qcore.force_kernel("linear", other):
            assert chosen() == other
            with outer:  # entered again
                assert chosen() == slow
            assert chosen() == other
        assert chosen() == slow
    assert chosen() == free
    with pytest.raises(ZeroDivisionError), qcore.force_kernel("linear", slow):
        raise ZeroDivisionError
    assert chosen() == free


def test_force_kernel_refuses():
    with pytest.raises(
        qcore.QcoreValueError,
        match=r"^force_kernel: there is no operator 'sort', expected one of: awq, awq_linear, conv2d, ",
    ):
        qcore.force_kernel("sort", "reference").__enter__()
    with pytest.raises(qcore.QcoreValueError) as caught:
        qcore.force_kernel("linear", "fastest").__enter__()
    names = ", ".join(row.name for row in qcore.kernels("linear"))
    assert str(caught.value) == f"force_kernel: operator 'linear' has no kernel 'fastest', expected one of: {names}"
    with pytest.raises(qcore.QcoreTypeError, match="force_kernel: name is 3, expected a string"):
        qcore.force_kernel("linear", 3)
    for row in qcore.kernels("linear"):
        if not row.available:
            with pytest.raises(qcore.QcoreValueError) as caught:
                qcore.force_kernel("linear", row.name).__enter__()
            expected = (
                f"force_kernel: kernel '{row.name}' of operator 'linear' is not available here: it needs {row.needs}"
            )
            assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("kernel", "mode"), [(name, mode) for name in AVAILABLE for mode in MODES if name not in KERNELS[mode]]
)
def test_forced_kernel_refuses_a_mode_and_leaves_out_alone(kernel, mode):
    out = np.full((2, 3), POISON)
    with pytest.raises(qcore.QcoreValueError) as caught:
        run(kernel, np.ones((2, 8), np.float32), qcore.quantize(np.ones((3, 8), np.float32)), compute=mode, out=out)
    own = " and ".join(other for other in ("int8", "int8_asym", "int16", "float") if kernel in KERNELS[other])
    text = f"linear: the forced kernel '{kernel}' does not take this call: it computes in {own}"
    assert str(caught.value) == text
    assert np.isnan(out).all()


def test_unknown_operators():
    for call, name in ((qcore.kernels, "kernels"), (qcore.last_kernel, "last_kernel")):
        with pytest.raises(
            qcore.QcoreValueError,
            match=f"^{name}: there is no operator 'sort', expected one of: awq, awq_linear, conv2d, ",
        ):
            call("sort")
        with pytest.raises(qcore.QcoreTypeError, match=f"^{name}: op is 3, expected a string$"):
            call(3)


# Environment variables, each in a process of its own

REPORT = """
import numpy as np, qcore
x = np.arange(-30, 34, dtype=np.float32).reshape(2, 32)
weight = qcore.quantize(np.arange(96, dtype=np.float32).reshape(3, 32), bits=8, block_size=16)
y = qcore.linear(x, weight)
print(qcore.last_kernel("linear"), qcore.get_num_threads(), " ".join(qcore.info()["isa"]) or "baseline", y.sum())
"""


def in_process(**environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("QCORE_")}
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        capture_output=True,
        text=True,
        env=clean | environment,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout.split(), done.stderr.strip().rpartition("\n")[2]


def test_environment_default():
    status, (kernel, threads, *_), _ = in_process()
    assert (status, int(threads)) == (0, len(os.sched_getaffinity(0)))
    assert in_process(QCORE_ISA="", QCORE_NUM_THREADS="", QCORE_FORCE_KERNEL="")[1][0] == kernel


@pytest.mark.parametrize("name", KERNELS["int8"])
def test_environment_forces_a_kernel(name):
    _, (*_, expected), _ = in_process()
    status, (kernel, *_, total), _ = in_process(QCORE_FORCE_KERNEL=f"linear={name}")
    assert (status, kernel, total) == (0, name, expected)


@pytest.mark.parametrize("cap", CAPS)
def test_environment_caps_the_isa(cap):
    _, (_, _, *detected, expected), _ = in_process()
    status, (kernel, _, *isa, total), _ = in_process(QCORE_ISA=cap)
    known = [feature for feature in detected if feature in FEATURES and CAPS.index(feature) <= CAPS.index(cap)]
    assert (status, total) == (0, expected)
    assert [feature for feature in isa if not feature.endswith("bf16")] == (known or ["baseline"])
    assert ("avx512bf16" in isa) == ("avx512bf16" in detected and cap in ("avx512vnni", "amx"))
    assert ("amxbf16" in isa) == ("amxbf16" in detected and cap == "amx")
    best = known[-1] if known else cap
    expected_kernel = KERNEL_OF.get(best, f"int8_{best}")
    # A build for a machine with AVX2 has no kernels by vectors of the compiler.
    assert kernel == (expected_kernel if expected_kernel in KERNELS["int8"] else "reference")


def test_environment_sets_the_threads():
    assert in_process(QCORE_NUM_THREADS="3")[1][1] == "3"


def test_environment_sets_how_long_workers_look_for_work():
    assert in_process(QCORE_SPIN_US="0", QCORE_NUM_THREADS="2")[0] == 0


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("QCORE_NUM_THREADS", "0", "QCORE_NUM_THREADS is '0', expected an integer from 1 to 1024"),
        ("QCORE_NUM_THREADS", "many", "QCORE_NUM_THREADS is 'many', expected an integer from 1 to 1024"),
        ("QCORE_NUM_THREADS", "1025", "QCORE_NUM_THREADS is '1025', expected an integer from 1 to 1024"),
        ("QCORE_NUM_THREADS", "2x", "QCORE_NUM_THREADS is '2x', expected an integer from 1 to 1024"),
        ("QCORE_SPIN_US", "-1", "QCORE_SPIN_US is '-1', expected an integer from 0 to 1000000"),
        ("QCORE_ISA", "avx10", f"QCORE_ISA is 'avx10', expected {', '.join(CAPS[:-1])} or {CAPS[-1]}"),
        ("QCORE_FORCE_KERNEL", "reference", "QCORE_FORCE_KERNEL has the item 'reference', expected OPERATOR=KERNEL"),
        (
            "QCORE_FORCE_KERNEL",
            "sort=reference",
            "QCORE_FORCE_KERNEL: there is no operator 'sort', expected one of: awq, awq_linear, conv2d, ",
        ),
        ("QCORE_FORCE_KERNEL", "linear=fastest", "QCORE_FORCE_KERNEL: operator 'linear' has no kernel 'fastest'"),
    ],
)
def test_bad_environment(variable, value, message):
    status, _, last_line = in_process(**{variable: value})
    assert status == 1
    assert last_line.startswith(f"qcore.QcoreValueError: environment variable {message}")


def test_environment_can_force_an_unavailable_kernel_only_with_an_error():
    kernel, needs = ("int8_neon", "NEON") if ARM else ("int8_avx2", "AVX2, FMA and F16C")
    status, _, last_line = in_process(QCORE_ISA="baseline", QCORE_FORCE_KERNEL=f"linear={kernel}")
    assert status == 1
    assert f"kernel '{kernel}' of operator 'linear' is not available here: it needs {needs}" in last_line
