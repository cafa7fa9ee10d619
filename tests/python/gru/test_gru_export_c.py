"""Exported GRUs: the C header under strict flags and sanitizers, on vectors of the library and of the test's own."""

import re

import numpy as np
import pytest
from recurrent_oracles.exported_c import ARM, COMPILER, QEMU, SANITIZED, build, check_sizes, run, run_on_board

import qcore
from qcore.gru import Calibrator, Config, Direction, GruWeights

CONFIGS = {
    "8 staged": Config(pipeline="staged"),
    "8 fused": Config(pipeline="fused", rounding="half_even"),
    "16 staged": Config(bits=16, rounding="half_even", pipeline="staged"),
    "16 fused": Config(bits=16, pipeline="fused"),
    "16 interp": Config(bits=16, tables="interp"),
    "mixed": Config(widths={"h": 13, "weights": 5, "z_pre": 8, "g": 11, "biases": 20}, tables="interp"),
    "mixed fused": Config(widths={"x": 9, "h": 7, "rh": 12, "z": 6, "weights": 12}, pipeline="fused"),
}

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


def calibrated(config, layers=2, c=5, h=7, *, batch_first=False):
    rng = np.random.default_rng(0)
    parts = []
    for inputs in [c] + [h] * (layers - 1):
        shapes = (3 * h, inputs), (3 * h, h), 3 * h, 3 * h
        sigmas = (0.5, 0.4, 0.3, 0.3)
        parts.append([Direction(*(rng.normal(0, s, shape) for s, shape in zip(sigmas, shapes, strict=True)))])
    x = rng.normal(0, 1, (20, 4, c))
    weights = GruWeights(parts, batch_first=batch_first)
    return Calibrator(weights).observe(x.transpose(1, 0, 2) if batch_first else x).finish(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_self_test_passes_under_sanitizers(name, tmp_path):
    q = calibrated(CONFIGS[name])
    q.export_c(tmp_path / "net.h", "net", tables=q.config.tables)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.h", "net_selftest.c"]
    source = (tmp_path / "net.h").read_text()
    assert not re.search(r"\b(float|double|malloc|memcpy)\b", source)
    assert re.findall(r"#include (.*)", source) in (
        ["<stdint.h>", "<arm_mve.h>"],
        ["<stdint.h>", "<arm_mve.h>", "<arm_acle.h>"],
    )
    assert run(build(tmp_path / "net_selftest.c", SANITIZED)) == (0, "net: 2 rows of 24 steps, 336 outputs equal\n")


@pytest.mark.parametrize(("c", "h", "layers"), [(1, 1, 1), (3, 33, 1), (2, 1, 3), (40, 9, 2)])
def test_shapes(c, h, layers, tmp_path):
    q = calibrated(Config(bits=16, tables="interp", pipeline="fused"), layers, c, h)
    q.export_c(tmp_path / "net.h")
    assert run(build(tmp_path / "net_selftest.c"))[0] == 0


def test_own_inputs_and_a_wrong_output(tmp_path):
    q = calibrated(Config(), batch_first=True).with_tables("interp")
    x = np.random.default_rng(5).normal(0, 1, (3, 6, 5)).astype(np.float32)
    q.export_c(tmp_path / "net.h", x=x)
    program = tmp_path / "net_selftest.c"
    assert run(build(program)) == (0, "gru: 3 rows of 6 steps, 126 outputs equal\n")
    text = program.read_text()
    before, _, outputs = text.partition("outputs[ROWS][STEPS][GRU_OUTPUT_SIZE] = {")
    codes = q.format("h", 1).encode(q(x)[0][2, 4])
    line = "{" + ", ".join(map(str, codes)) + "}"
    assert outputs.count(line) == 1
    codes[6] += 1
    program.write_text(f"{before}outputs[ROWS][STEPS][GRU_OUTPUT_SIZE] = {{" + outputs.replace(
        line, "{" + ", ".join(map(str, codes)) + "}"))  # fmt: skip
    assert run(build(program)) == (
        1,
        f"gru: differs first at step 4, row 2, channel 6: got {codes[6] - 1}, expected {codes[6]}\n",
    )


def test_wide_sums_take_64_bits(tmp_path):
    """16-bit weights and inputs overflow 32 bits: the header says int64_t, and int32_t where the proof allows it."""
    calibrated(Config(bits=16), 1, 40, 9).export_c(tmp_path / "wide.h", "wide")
    assert "typedef int64_t wide_sum_x;" in (tmp_path / "wide.h").read_text()
    assert run(build(tmp_path / "wide_selftest.c", SANITIZED))[0] == 0
    calibrated(Config(), 1, 40, 9).export_c(tmp_path / "narrow.h", "narrow")
    assert "typedef int32_t narrow_sum_x;" in (tmp_path / "narrow.h").read_text()


@pytest.mark.parametrize("pipeline", ["fused", "staged"])
def test_numbers_take_32_bits_where_they_fit(pipeline, tmp_path):
    """The ends of all codes overflow nothing; formats of 16 bits need 64."""
    x = np.random.default_rng(1).choice(np.array([-128, 127], np.int8), (9, 3, 40))
    calibrated(Config(pipeline=pipeline), 2, 40, 9).export_c(tmp_path / "net.h", "net", x)
    assert "typedef int32_t net_wide;" in (tmp_path / "net.h").read_text()
    assert run(build(tmp_path / "net_selftest.c", SANITIZED))[0] == 0
    calibrated(Config(bits=16, pipeline=pipeline), 1, 5, 4).export_c(tmp_path / "wide.h", "wide")
    assert "typedef int64_t wide_wide;" in (tmp_path / "wide.h").read_text()


def test_tables_are_interpolated_unless_asked(tmp_path):
    """The self-test has the outputs of with_tables(): the same integers here and there, from either config."""
    q = calibrated(Config(bits=16), 1)
    texts = []
    for given, tables in [(q, "interp"), (q, "exact"), (q.with_tables("interp"), "interp")]:
        sizes = given.export_c(tmp_path / "net.h", tables=tables)
        assert f", tables {tables}." in (tmp_path / "net.h").read_text()
        # 512 starts and 513 values of each gate, 2 bytes each; 65,536 codes of each gate.
        assert sizes.tables == 3 * 2 * {"interp": 512 + 513, "exact": 65536}[tables]
        texts.append([(tmp_path / name).read_text() for name in ("net.h", "net_selftest.c")])
    assert texts[0] == texts[2] and texts[0][1] != texts[1][1]
    q.export_c(tmp_path / "net.h")
    assert [(tmp_path / name).read_text() for name in ("net.h", "net_selftest.c")] == texts[0]
    with pytest.raises(qcore.QcoreValueError, match="gru config: tables is 'fast', expected 'exact' or 'interp'"):
        q.export_c(tmp_path / "net.h", tables="fast")
    x = np.random.default_rng(0).integers(-99, 99, (5, 2, 5)).astype(np.int16)
    for tables in ("interp", "exact"):
        config = Config(bits=16, tables=tables)
        assert (q.with_tables(tables)(x)[0] == calibrated(config, 1)(x)[0]).all()


SIZES = {
    "one layer": ("x86", Config(), 1, 8, 16),
    "layers, staged": ("cortex-m0", Config(pipeline="staged", rounding="half_even"), 2, 5, 7),
    "16 bits": ("cortex-m4", Config(bits=16), 2, 40, 33),
    "exact": ("cortex-m0", Config(tables="exact"), 1, 3, 5),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_the_object(name, tmp_path):
    target, config, layers, c, h = SIZES[name]
    if target != "x86" and ARM is None:
        pytest.skip("needs arm-none-eabi-gcc")
    sizes = calibrated(config, layers, c, h).export_c(tmp_path / "net.h", "net", tables=config.tables)
    assert sizes.multiply_adds == 3 * h * (c + h + (layers - 1) * 2 * h)
    assert sizes.state == layers * h * (1 if config.bits == 8 else 2)
    assert sizes.to_dict()["flash"] == sizes.weights + sizes.offsets + sizes.tables + sizes.layers
    check_sizes(tmp_path, sizes, target)


# Weights, codes and sums of the loops for DSP instructions and MVE, each with features beside the last whole vector.
LOOPS = {
    "8, 8, 32": Config(),
    "16, 16, 64": Config(bits=16, pipeline="staged"),
    "16, 16, 32": Config(widths={"x": 9, "h": 10, "weights": 9}),
    "8, 16, 32": Config(widths={"x": 16, "h": 16}),
    "16, 8, 32": Config(widths={"weights": 12}),
}


@pytest.mark.skipif(ARM is None or QEMU is None, reason="needs arm-none-eabi-gcc and qemu-system-arm")
@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("name", LOOPS)
def test_dsp_instructions_and_mve_give_the_same_integers(name, cpu, tmp_path):
    if cpu == "cortex-m4" and name in ("8, 16, 32", "16, 8, 32"):
        return  # plain C there
    calibrated(LOOPS[name], 2, 37, 21).export_c(tmp_path / "net.h", "net")
    bits = [
        re.search(rf"typedef int(\d+)_t net_{kind};", (tmp_path / "net.h").read_text())[1] for kind in ("weight", "h")
    ]
    sums = re.search(r"typedef int(\d+)_t net_sum_h;", (tmp_path / "net.h").read_text())[1]
    assert ", ".join([*bits, sums]) == name
    assert run_on_board(tmp_path / "net_selftest.c", cpu) == (0, "net: 2 rows of 24 steps, 1008 outputs equal\n")


@pytest.mark.parametrize(("c", "h", "layers"), [(1, 1, 1), (3, 33, 1), (64, 31, 2), (45, 40, 1)])
def test_weights_of_four_bits_take_half_a_byte(c, h, layers, tmp_path):
    q = calibrated(Config(widths={"weights": 4}), layers, c, h)
    x = np.random.default_rng(1).choice(np.array([-128, 3, 127], np.int8), (9, 3, c))
    sizes = q.export_c(tmp_path / "net.h", "net", x)
    row_of_x, row_of_h = (c + 1) // 2, (h + 1) // 2
    assert sizes.weights == 3 * h * (row_of_x + row_of_h + (layers - 1) * 2 * row_of_h)
    assert "typedef uint8_t net_weight;" in (tmp_path / "net.h").read_text()
    assert run(build(tmp_path / "net_selftest.c", SANITIZED))[0] == 0
    # The compiler needs no loop for a single code.
    for cpu in ("cortex-m4", "cortex-m55") if ARM and QEMU and c > 32 else ():
        assert run_on_board(tmp_path / "net_selftest.c", cpu)[0] == 0


def test_weights_of_four_bits_beside_codes_of_16_take_a_byte(tmp_path):
    sizes = calibrated(Config(bits=16, widths={"weights": 4}), 1, 8, 6).export_c(tmp_path / "net.h", "net")
    assert sizes.weights == 3 * 6 * (8 + 6)
    assert run(build(tmp_path / "net_selftest.c", SANITIZED))[0] == 0


def test_two_headers_in_one_program(tmp_path):
    calibrated(Config(), 1).export_c(tmp_path / "first.h", "first")
    calibrated(Config(pipeline="fused"), 1).export_c(tmp_path / "second.h", "second")
    program = tmp_path / "both.c"
    program.write_text('#include "first.h"\n#include "second.h"\nint main(void) { return 0; }\n')
    assert run(build(program))[0] == 0


def test_bad_exports(tmp_path):
    q = calibrated(Config(), 1)
    direction = q._layers[0][0]
    both = qcore.gru.QuantGRU([[direction, direction]], q.config)
    for call, words in [
        (lambda: q.export_c(tmp_path / "a.h", "2d"), "gru export: name is '2d', expected a C identifier"),
        (lambda: q.export_c(tmp_path / "a.c"), "a.c', expected a name that ends in .h"),
        (lambda: both.export_c(tmp_path / "a.h"), "a bidirectional GRU needs the whole sequence"),
        (lambda: q.export_c(tmp_path / "a.h", x=np.zeros((2, 2, 4), np.float32)), "x has shape [2, 2, 4], expected"),
        (lambda: q.export_c(tmp_path / "a.h", 3), "gru export: name"),
    ]:
        with pytest.raises(qcore.QcoreError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
    assert not list(tmp_path.iterdir())
