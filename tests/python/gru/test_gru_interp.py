"""Interpolated tables: at most 2 codes beside the exact ones, monotone, whatever the formats; files; a fit's gap."""

import math

import numpy as np
import pytest
from gru_oracle import Oracle, random_codes, random_parts, sigmoid, table
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import qcore
from qcore.gru import TENSORS, Calibrator, Config, Format, GruWeights, QuantGRU
from qcore.gru.core import make

GATES = (("z_pre", "z", sigmoid), ("r_pre", "r", sigmoid), ("g_pre", "g", math.tanh))


def cores(formats):
    """Make GRUs with exact and with interpolated tables, C = H = 1."""
    parts = {"sizes": (1, 1), "weight_bits": 8, "bias_bits": 16}
    rows = {name: Format(16, name not in ("z", "r"), 0) for name in TENSORS} | formats
    # The factors have exponents that fit all these formats.
    exponents = {"wx": rows["z_pre"].exponent, "rh": rows["z_pre"].exponent, "rb": rows["g_pre"].exponent}
    rows |= {name: Format(16, True, exponent) for name, exponent in exponents.items()}
    parts["formats"] = np.array([rows[name].row() for name in TENSORS], np.int32)
    for name, count in (("w", 3), ("r", 3)):
        parts[name] = np.ones((count, 1), np.int16)
    parts["bx"] = parts["br"] = np.zeros(3, np.int32)
    for name in ("w", "r", "bx", "br"):
        parts[f"{name}_exponents"] = np.zeros(3, np.int32)
    return make(parts, Config()), make(parts, Config(tables="interp"))


def check(exact, interp, gate, bits):
    expected, got = np.array(exact.table(gate)), np.array(interp.table(gate))
    starts, values = (np.array(row) for row in interp.knots(gate))
    if bits <= 8:
        assert len(starts) == 0
        np.testing.assert_array_equal(got, expected)
        return 0
    assert len(starts) == len(values) == 513 and starts[0] == 0 and starts[-1] == len(expected) == 1 << bits
    lengths = np.diff(starts)
    assert (lengths > 0).all() and (lengths & (lengths - 1) == 0).all()
    np.testing.assert_array_equal(values[:-1], expected[starts[:-1]])
    assert (np.diff(got) >= 0).all()
    # Exactly the straight lines, rounded half up.
    which = np.searchsorted(starts, np.arange(len(got)), side="right") - 1
    rise = (values[which + 1] - values[which]) * (np.arange(len(got)) - starts[which])
    np.testing.assert_array_equal(got, values[which] + (2 * rise + lengths[which]) // (2 * lengths[which]))
    return abs(got - expected).max()


@st.composite
def gate_formats(draw):
    """Format that calibration may choose for an argument and its gate: any range that contains 0."""
    formats = {}
    for pre, out, _ in GATES:
        bits = draw(st.integers(7, 16))
        shape = Format(bits, True, 0)
        zero = draw(st.one_of(st.integers(shape.lowest, shape.highest), st.just(0)))
        # From a range of 2**10 in all, where the function is a step, to 2**-8, where it is a line.
        formats[pre] = Format(bits, True, bits + draw(st.integers(-10, 8)), zero)
        out_bits = draw(st.integers(2, 16))
        formats[out] = Format(out_bits, out == "g", out_bits - (out == "g") + draw(st.integers(-1, 8)))
        if out != "g" and formats[out].exponent < 0:
            formats[out] = Format(out_bits, False, 0)
    return formats


@given(gate_formats())
def test_at_most_two_codes_beside_exact_and_monotone(formats):
    exact, interp = cores(formats)
    for gate, (pre, _, _) in enumerate(GATES):
        assert check(exact, interp, gate, formats[pre].bits) <= 2, formats[pre]


@pytest.mark.parametrize("range_exponent", range(-5, 9))
def test_every_range_of_sixteen_bits(range_exponent):
    """16 bits in and out: the argument's range from 1/32 to 256 on either side, the gate's from all to 1/16 of it."""
    worst = 0
    for narrower in range(5):
        e = 15 - range_exponent
        formats = {pre: Format(16, True, e) for pre, _, _ in GATES}
        formats |= {
            "z": Format(16, False, 16 + narrower),
            "r": Format(16, False, 15),
            "g": Format(16, True, 15 + narrower),
        }
        exact, interp = cores(formats)
        worst = max([worst, *(check(exact, interp, gate, 16) for gate in range(3))])
    assert worst <= 2


def sixteen_segments(function, source, target):
    """Return the predecessor's table: 16 straight lines over the argument's codes, least-squares fits."""
    exact = table(function, source, target).astype(float)
    lines = [np.polyval(np.polyfit(np.arange(4096), part, 1), np.arange(4096)) for part in np.split(exact, 16)]
    return np.clip(np.rint(np.concatenate(lines)), target.lowest, target.highest)


def test_the_gap_to_sixteen_segments():
    """Arguments within 8: a fit of 16 lines errs by hundreds of codes and is not monotone."""
    formats = {pre: Format(16, True, 12) for pre, _, _ in GATES}
    formats |= {"z": Format(16, False, 16), "r": Format(16, False, 16), "g": Format(16, True, 15)}
    exact, interp = cores(formats)
    for gate, (pre, out, function) in enumerate(GATES):
        fit = sixteen_segments(function, formats[pre], formats[out])
        error = abs(fit - np.array(exact.table(gate))).max()
        assert check(exact, interp, gate, 16) <= 2
        assert error > 100 and (np.diff(fit) < 0).any(), (pre, error)


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
def test_kernels_run_the_expanded_table(pipeline):
    rng = np.random.default_rng(3)
    for c, h in ((3, 5), (2, 1)):
        parts = random_parts(rng, c, h)
        core = make(parts, Config(pipeline=pipeline, tables="interp"))
        oracle = Oracle(parts, pipeline, "half_away")
        oracle.tables = [np.array(core.table(gate), np.int64) for gate in range(3)]
        x = random_codes(rng, oracle.f["x"], (4, 2, c))
        y, last = np.empty((4, 2, h), oracle.f["h"].dtype), np.empty((2, h), oracle.f["h"].dtype)
        core.run(x, None, y, last, False, None, None, 0)
        np.testing.assert_array_equal(y, oracle.run(x)[0])


def calibrated(**options):
    rng = np.random.default_rng(0)
    weights = GruWeights.from_arrays(rng.normal(0, 0.5, (18, 4)), rng.normal(0, 0.4, (18, 6)))
    x = rng.normal(0, 1, (30, 3, 4)).astype(np.float32)
    return Calibrator(weights).observe(x).finish(Config(bits=16, **options)), x


def test_interp_costs_little():
    (exact, x), (interp, _) = calibrated(), calibrated(tables="interp")
    difference = abs(exact(x)[0] - interp(x)[0]).max()
    assert 0 < difference < 1e-3


def test_files(tmp_path):
    q, x = calibrated(tables="interp")
    q.save(tmp_path / "gru")
    tensors = load_file(tmp_path / "gru")
    with safe_open(tmp_path / "gru", "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "qcore.gru.3" and tensors["0.0.knots_z"].shape == (2, 513)
    again = QuantGRU.load(tmp_path / "gru")
    assert again.config.tables == "interp"
    np.testing.assert_array_equal(again(x)[0], q(x)[0])
    tensors["0.0.knots_g"][1, 5] += 1
    save_file(tensors, tmp_path / "other", metadata)
    with pytest.raises(qcore.QcoreValueError, match=r"0\.0\.knots_g has other knots than those of its table's formats"):
        QuantGRU.load(tmp_path / "other")
    del tensors["0.0.knots_g"]
    save_file(tensors, tmp_path / "other", metadata)
    with pytest.raises(qcore.QcoreValueError, match=r"has no tensor 0\.0\.knots_g"):
        QuantGRU.load(tmp_path / "other")


def test_files_of_version_1(tmp_path):
    """They have no word about tables: exact ones."""
    import json

    q, x = calibrated()
    q.save(tmp_path / "gru")
    with safe_open(tmp_path / "gru", "numpy") as file:
        metadata = file.metadata()
    description = json.loads(metadata["gru"])
    config = json.loads(description["config"])
    del config["tables"]
    metadata |= {"format": "qcore.gru.1", "gru": json.dumps(description | {"config": json.dumps(config)})}
    save_file(load_file(tmp_path / "gru"), tmp_path / "old", metadata)
    np.testing.assert_array_equal(QuantGRU.load(tmp_path / "old")(x)[0], q(x)[0])


def test_bad_tables():
    with pytest.raises(qcore.QcoreValueError, match="gru config: tables is 'linear', expected 'exact' or 'interp'"):
        Config(tables="linear")
