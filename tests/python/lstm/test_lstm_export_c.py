"""Exported LSTMs: the C under strict flags and sanitizers against the oracle's integers; its sizes; the command."""

import json

import numpy as np
import pytest
from gru_oracle import random_codes
from recurrent_oracles.exported_c import ARM, COMPILER, QEMU, SANITIZED, build, check_sizes, run, run_on_board
from recurrent_oracles.lstm_oracle import Oracle, random_parts

import qcore
from qcore.cli import main
from qcore.lstm import Calibrator, Config, Direction, LstmWeights, QuantLSTM
from qcore.lstm.core import make

CONFIGS = {
    "8": Config(tables="interp"),
    "16": Config(bits=16, rounding="half_even"),
    "16 interp": Config(bits=16, tables="interp"),
    "mixed": Config(widths={"x": 9, "h": 13, "c": 11, "c_tanh": 7, "weights": 5, "g_pre": 8}, tables="interp"),
}

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


def calibrated(config, layers=2, c=5, h=7, *, projection=0, peepholes=False, batch_first=False):
    rng = np.random.default_rng(0)
    arrays, outputs = {}, projection or h
    for layer in range(layers):
        shapes = {"weight_ih": (4 * h, outputs if layer else c), "weight_hh": (4 * h, outputs)}
        shapes |= {"bias_ih": 4 * h, "bias_hh": 4 * h} | ({"weight_hr": (projection, h)} if projection else {})
        arrays |= {f"{name}_l{layer}": rng.normal(0, 0.4, shape) for name, shape in shapes.items()}
    x = rng.normal(0, 1, (20, 4, c))
    weights = LstmWeights.from_state_dict(arrays, batch_first=batch_first)
    if peepholes:
        made = [
            [Direction(each.w, each.r, each.b, projection=each.projection, peepholes=rng.normal(0, 0.4, (3, h)))]
            for (each,) in weights.layers
        ]
        weights = LstmWeights(made, batch_first=batch_first)
    return Calibrator(weights).observe(x.transpose(1, 0, 2) if batch_first else x).finish(config)


@pytest.mark.parametrize(("projection", "peepholes"), [(0, False), (3, False), (0, True)])
@pytest.mark.parametrize("name", CONFIGS)
def test_self_test_passes_under_sanitizers(name, projection, peepholes, tmp_path):
    q = calibrated(CONFIGS[name], projection=projection, peepholes=peepholes, batch_first=name == "16")
    q.export_c(tmp_path / "net.h", "net", tables=q.config.tables)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.h", "net_selftest.c"]
    said = f"net: 2 rows of 24 steps, {48 * q.output_size} outputs equal\n"
    assert run(build(tmp_path / "net_selftest.c", SANITIZED)) == (0, said)


@pytest.mark.parametrize("rounding", ["half_away", "half_even"])
def test_any_parameters_give_the_oracles_integers(rounding, tmp_path):
    """The self-test's outputs are the oracle's, and the C has them, for formats of no float model."""
    rng = np.random.default_rng(2)
    for number, (c, h, projection) in enumerate([(1, 1, 0), (17, 16, 0), (3, 33, 0), (5, 9, 13)]):
        config = Config(rounding=rounding)
        parts = random_parts(rng, c, h, wide=number > 0, projection=projection, peepholes=number > 1)
        q, oracle = QuantLSTM([[(make(parts, config), parts)]], config), Oracle(parts, rounding)
        x = random_codes(rng, oracle.f["x"], (9, 2, c))
        q.export_c(tmp_path / "net.h", "net", x, tables="exact")
        expected = oracle.run(x)[0].transpose(1, 0, 2)
        rows = ["{" + ", ".join(map(str, step)) + "}" for row in expected for step in row.tolist()]
        outputs = (tmp_path / "net_selftest.c").read_text().partition("outputs[ROWS]")[2].splitlines()
        assert [line.strip(" ,") for line in outputs if line.startswith("    {")] == rows
        assert run(build(tmp_path / "net_selftest.c"))[0] == 0


@pytest.mark.parametrize("peepholes", [False, True])
def test_numbers_take_32_bits_where_they_fit(peepholes, tmp_path):
    """The ends of all codes overflow nothing; formats of 16 bits need 64."""
    x = np.random.default_rng(1).choice(np.array([-128, 127], np.int8), (9, 3, 40))
    calibrated(Config(), 2, 40, 9, peepholes=peepholes).export_c(tmp_path / "net.h", "net", x)
    assert "typedef int32_t net_wide;" in (tmp_path / "net.h").read_text()
    assert run(build(tmp_path / "net_selftest.c", SANITIZED))[0] == 0
    calibrated(Config(bits=16), 1).export_c(tmp_path / "wide.h", "wide")
    assert "typedef int64_t wide_wide;" in (tmp_path / "wide.h").read_text()


def test_tables_are_interpolated_unless_asked(tmp_path):
    q = calibrated(Config(bits=16), 1)
    sizes = q.export_c(tmp_path / "net.h")
    assert sizes.tables == 5 * 2 * (512 + 513)
    made = (tmp_path / "net_selftest.c").read_text()
    q.with_tables("interp").export_c(tmp_path / "net.h", tables="interp")
    assert (tmp_path / "net_selftest.c").read_text() == made
    assert q.export_c(tmp_path / "net.h", tables="exact").tables == 5 * 2 * 65536
    assert (tmp_path / "net_selftest.c").read_text() != made


SIZES = {"cortex-m4": (Config(), 1, 8, 16, 5), "cortex-m0": (Config(bits=16, rounding="half_even"), 2, 5, 7, 0)}


@pytest.mark.skipif(ARM is None, reason="needs arm-none-eabi-gcc")
@pytest.mark.parametrize("target", SIZES)
def test_sizes_are_those_of_the_object(target, tmp_path):
    config, layers, c, h, projection = SIZES[target]
    peepholes = target == "cortex-m0"
    outputs = projection or h
    sizes = calibrated(config, layers, c, h, projection=projection, peepholes=peepholes).export_c(
        tmp_path / "net.h", "net"
    )
    more = layers * (projection * h + (3 * h if peepholes else 0))
    assert sizes.multiply_adds == 4 * h * (c + outputs + (layers - 1) * 2 * outputs) + more
    # c begins where its elements of 2 bytes may.
    assert sizes.state == -(-layers * outputs * config.bits // 8 // 2) * 2 + 2 * layers * h
    check_sizes(tmp_path, sizes, target)


@pytest.mark.skipif(ARM is None or QEMU is None, reason="needs arm-none-eabi-gcc and qemu-system-arm")
@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_dsp_instructions_and_mve_give_the_same_integers(bits, cpu, tmp_path):
    config = Config(widths={"weights": 4}) if bits == 4 else Config(bits=bits)
    q = calibrated(config, 2, 37, 21, projection=0 if bits == 16 else 11, peepholes=bits != 8)
    q.export_c(tmp_path / "net.h", "net")
    said = f"net: 2 rows of 24 steps, {48 * q.output_size} outputs equal\n"
    assert run_on_board(tmp_path / "net_selftest.c", cpu) == (0, said)


def test_bad_exports(tmp_path):
    q = calibrated(Config(), 1)
    both = QuantLSTM([[q._layers[0][0]] * 2], q.config)
    for call, words in [
        (lambda: q.export_c(tmp_path / "a.h", "2d"), "lstm export: name is '2d', expected a C identifier"),
        (lambda: q.export_c(tmp_path / "a.c"), "a.c', expected a name that ends in .h"),
        (lambda: both.export_c(tmp_path / "a.h"), "a bidirectional LSTM needs the whole sequence"),
        (lambda: q.export_c(tmp_path / "a.h", x=np.zeros((2, 2, 4), np.float32)), "x has shape [2, 2, 4], expected"),
        (lambda: q.export_c(tmp_path / "a.h", x=np.zeros((0, 2, 5), np.float32)), "expected at least one step"),
        (lambda: q.export_c(tmp_path / "a.h", tables=3), "lstm config: tables is 3, expected 'exact' or 'interp'"),
    ]:
        with pytest.raises(qcore.QcoreError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
    assert not list(tmp_path.iterdir())


def test_command(tmp_path, capsys):
    q = calibrated(Config())
    model, header, file = tmp_path / "lstm.safetensors", tmp_path / "net.h", tmp_path / "sizes.json"
    q.save(model)
    x = np.random.default_rng(3).normal(0, 1, (6, 2, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    options = ["--name", "net", "--inputs", str(tmp_path / "x.npy"), "--json", str(file)]
    assert main(["lstm", "export", str(model), "-o", str(header), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert run(build(tmp_path / "net_selftest.c")) == (0, "net: 2 rows of 6 steps, 84 outputs equal\n")
    sizes = q.export_c(header, "net", x)
    assert printed == [f"{header} and {tmp_path / 'net_selftest.c'}, tables interp", *sizes.lines()]
    written = {"output": str(header), "selftest": str(tmp_path / "net_selftest.c"), "tables": "interp"}
    assert json.loads(file.read_text()) == written | sizes.to_dict()
    assert main(["lstm", "export", str(model), "-o", str(header), "--tables", "fast"]) == 2
    assert "lstm config: tables is 'fast', expected 'exact' or 'interp'" in capsys.readouterr().err
