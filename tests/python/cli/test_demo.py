"""The shipped model, in NumPy float and quantized, on its held-out images."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import qcore
from qcore.demo import command, report
from qcore.demo.data import CHECKPOINT, load
from qcore.demo.layers import GatedGru, PatchConv2d, patch_weight, relu, rows_as_steps, sigmoid
from qcore.demo.model import Model
from qcore.demo.operators import FixedGruOperators, FloatOperators, QcoreOperators, StaticOperators
from qcore.demo.run import run
from qcore.demo.static_layers import format_of


@pytest.fixture(scope="module")
def digits():
    return load()


@pytest.fixture(scope="module")
def result(digits):
    return run(batch=128, repeats=1, digits=digits)


def row(result, name):
    return next(entry for entry in result.measurements if entry.name == name)


def test_checkpoint_is_small_and_holds_real_images(digits):
    assert CHECKPOINT.stat().st_size < 500_000
    assert digits.images.shape == (540, 1, 8, 8)
    assert digits.images.dtype == np.float32
    assert digits.images.min() == 0.0
    assert digits.images.max() == 1.0
    assert digits.labels.shape == (540,)
    assert set(digits.labels) == set(range(10))
    assert all(weight.dtype == np.float32 for weight in digits.weights.values())


def test_float_model_is_as_accurate_as_when_it_was_trained(digits):
    predictions = Model(digits.weights, FloatOperators())(digits.images).argmax(axis=1)
    assert (predictions == digits.labels).sum() == digits.float_correct


@pytest.mark.parametrize(
    ("operators", "tolerance"),
    # The last bit of a float activation may flip an activation's int8 code, hence the wider bound.
    [
        (FloatOperators(), 1e-4),
        (FixedGruOperators(8), 0.1),
        (StaticOperators(), 0.2),
        (QcoreOperators(8, 32), 0.05),
        (QcoreOperators(4, 32), 0.05),
    ],
    ids=["float", "GRU", "static", "8-bit", "4-bit"],
)
def test_batch_size_does_not_matter(digits, operators, tolerance):
    model = Model(digits.weights, operators)
    model.calibrate(digits.images[:64])
    whole = model(digits.images[:33])
    single = np.concatenate([model(image[None]) for image in digits.images[:33]])
    np.testing.assert_allclose(single, whole, rtol=0, atol=tolerance)


def test_quantized_models_stay_close_to_float(result):
    float_correct = row(result, "float").correct
    assert abs(row(result, "8-bit").correct - float_correct) <= 0.005 * result.images
    assert abs(row(result, "4-bit").correct - float_correct) <= 0.02 * result.images
    assert row(result, "8-bit").logit_error < 0.015
    assert row(result, "4-bit").logit_error < 0.15
    assert row(result, "4-bit, mse").logit_error < row(result, "4-bit").logit_error
    assert abs(row(result, "static").correct - float_correct) <= 0.005 * result.images
    assert 0 < row(result, "static").logit_error < 0.05


def test_quantized_rows_ran_a_qcore_kernel(result):
    names = {kernel.name for kernel in qcore.kernels("linear")}
    assert row(result, "float").kernel == "NumPy"
    static, *per_block = [entry for entry in result.measurements if entry.quantized.startswith("all")]
    assert [entry.name for entry in per_block] == ["8-bit", "4-bit", "4-bit, mse"]
    assert all(entry.kernel in names for entry in per_block)
    assert static.name == "static"
    assert static.kernel in {kernel.name for kernel in qcore.kernels("static")}
    assert result.conv_kernel in {kernel.name for kernel in qcore.kernels("conv2d")}
    assert result.table_kernel in {kernel.name for kernel in qcore.kernels("lut")}


def test_tables_alone_change_next_to_nothing(result):
    tables = row(result, "tables")
    assert tables.correct == row(result, "float").correct
    assert 0 < tables.logit_error < 1e-3
    assert tables.weight_bytes == row(result, "float").weight_bytes


def test_the_gru_runs_in_integers(result):
    float_correct = row(result, "float").correct
    for name, bound in (("GRU int8", 0.02), ("GRU int16", 5e-4)):
        found = row(result, name)
        assert abs(found.correct - float_correct) <= 0.005 * result.images
        assert 0 < found.logit_error < bound
    assert row(result, "GRU int16").logit_error < row(result, "GRU int8").logit_error
    assert result.gru_kernel in {kernel.name for kernel in qcore.kernels("gru")}


def test_static_layers_need_samples(digits):
    model = Model(digits.weights, StaticOperators())
    with pytest.raises(qcore.QcoreValueError, match=r"demo: a static layer was called before calibrate\(x\)"):
        model(digits.images[:1])


def test_static_layers_compute_what_the_float_ones_do():
    """Within the steps of both formats, and of the weights."""
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((4, 3, 3, 3), np.float32), rng.standard_normal(4, np.float32)
    x = rng.standard_normal((2, 3, 6, 6), np.float32)
    for with_relu in (False, True):
        options = {"padding": 1, "with_relu": with_relu}
        layer = StaticOperators().conv2d(weight, bias, **options)
        layer.calibrate(x)
        expected = FloatOperators().conv2d(weight, bias, **options)(x)
        assert np.abs(layer(x) - expected).max() < 0.02 * np.abs(expected).max()
        assert (layer(x).min() < 0) != with_relu


def test_formats_hold_the_samples():
    for values, zero in (([0.0, 5.1], 0), ([-5.1, 0.0], 255), ([-1.0, 1.04], 125), ([1.0, 2.55], 0), ([0.0], 0)):
        scale, found = format_of(np.float32(values))
        assert found == zero
        assert scale > 0
        assert scale * (255 - found) >= max(values) - scale
        assert scale * -found <= min(*values, 0.0) + scale


def test_the_gru_needs_samples(digits):
    model = Model(digits.weights, FixedGruOperators(8))
    with pytest.raises(qcore.QcoreValueError, match=r"demo: the GRU was called before calibrate\(x\)"):
        model(digits.images[:1])


def test_sizes_are_those_of_the_tensors(digits, result):
    weights = [value for name, value in digits.weights.items() if "bias" not in name]
    count = sum(weight.size for weight in weights)
    assert {entry.weight_count for entry in result.measurements} == {count}
    assert row(result, "float").weight_bytes == 4 * count
    for bits in (8, 4):
        form = {"bits": bits, "scale_dtype": "float32"}
        quantized = [qcore.quantize(w, block_size=16 if w.ndim == 4 else 32, **form) for w in weights]
        assert row(result, f"{bits}-bit").weight_bytes == sum(q.nbytes for q in quantized)
    rest = sum(w.nbytes for name, w in digits.weights.items() if "bias" not in name and not name.startswith("gru"))
    gru = [digits.weights[name] for name in ("gru.weight_ih_l0", "gru.weight_hh_l0")]
    for bits in (8, 16):
        codes_and_exponents = sum(w.size * bits // 8 + len(w) for w in gru)
        assert row(result, f"GRU int{bits}").weight_bytes == rest + codes_and_exponents
    per_channel = [w for name, w in digits.weights.items() if "bias" not in name and not name.startswith("gru")]
    codes_and_scales = sum(w.size + 4 * len(w) for w in per_channel)
    assert row(result, "static").weight_bytes == codes_and_scales + sum(w.size + len(w) for w in gru)
    assert row(result, "4-bit").weight_bytes < row(result, "8-bit").weight_bytes < row(result, "float").weight_bytes


def test_report_shows_what_was_measured(result):
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as capture:
        console.print(report.table(result))
    text = capture.get()
    assert "…" not in text  # nothing cut at the width of a plain terminal
    shown = report.shown_rows(result)
    assert [entry.name for entry in shown][:1] == ["float"]
    for entry in shown:
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{entry.name}  "))
        assert f"{entry.correct}/{result.images}" in line
        assert f"{entry.weight_bytes:,}" in line
        assert f"{entry.microseconds_per_image:.1f}" in line

    written = json.loads(report.to_json(result))
    assert written["images"] == result.images
    assert [entry["correct"] for entry in written["measurements"]] == [m.correct for m in result.measurements]
    assert [entry["bits_per_weight"] for entry in written["measurements"]] == [
        m.bits_per_weight for m in result.measurements
    ]
    lines = report.explanation(result).splitlines()
    assert len(lines) == 3
    assert f"right of {result.images}" in lines[1]


def test_the_command_writes_a_whole_file_or_none(result, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "run", lambda **options: result)
    command.demo(json=tmp_path / "measured.json")
    assert [path.name for path in tmp_path.iterdir()] == ["measured.json"]
    assert json.loads((tmp_path / "measured.json").read_text())["images"] == result.images
    monkeypatch.setattr(command, "run", None)  # a place that can't be written is refused before the measurements
    with pytest.raises(OSError, match="missing"):
        command.demo(json=tmp_path / "missing" / "measured.json")


def test_damaged_or_foreign_checkpoint_is_refused(tmp_path):
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(CHECKPOINT.read_bytes()[:1000])
    with pytest.raises(qcore.QcoreError, match="not a readable safetensors file"):
        load(damaged)

    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": np.zeros(3, np.float32)}, foreign)
    with pytest.raises(qcore.QcoreError, match="format version None, expected 1"):
        load(foreign)

    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.safetensors")


def test_convolution_over_patches_is_a_convolution():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 5, 6), np.float32)
    weight = rng.standard_normal((4, 3, 3, 2), np.float32)
    y = PatchConv2d(lambda patches: patches @ patch_weight(weight).T, (3, 2), padding=1)(x)

    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros((2, 4, 5, 7))
    for i in range(5):
        for j in range(7):
            expected[:, :, i, j] = np.einsum("bchw,ochw->bo", padded[:, :, i : i + 3, j : j + 2], weight)
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_gru_follows_the_cell_equations():
    rng = np.random.default_rng(0)
    size, width = 4, 3
    w, r = rng.standard_normal((3 * size, width), np.float32), rng.standard_normal((3 * size, size), np.float32)
    bw, br = rng.standard_normal(3 * size, np.float32), rng.standard_normal(3 * size, np.float32)
    x = rng.standard_normal((2, 6, width), np.float32)
    h = GatedGru(lambda v: v @ w.T + bw, lambda v: v @ r.T + br, size)(x)

    def gate(values):
        return 1 / (1 + np.exp(-values))

    for b in range(2):
        expected = np.zeros(size)
        for step in x[b].astype(np.float64):
            (wr, wz, wn), (rr, rz, rn) = np.split(w @ step + bw, 3), np.split(r @ expected + br, 3)
            reset, update = gate(wr + rr), gate(wz + rz)
            expected = update * expected + (1 - update) * np.tanh(wn + reset * rn)
        np.testing.assert_allclose(h[b], expected, atol=1e-5)


def test_small_pieces():
    np.testing.assert_array_equal(relu(np.float32([-1, 0, 2])), [0, 0, 2])
    np.testing.assert_allclose(sigmoid(np.float32([-200, 0, 200])), [0, 0.5, 1], atol=1e-7)
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(rows_as_steps(x)[1, 2], x[1, :, 2, :].T.ravel())
