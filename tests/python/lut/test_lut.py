"""Look-up tables: every kernel against the oracle, on every 16-bit number; strides, aliasing, threads, errors."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from linear_calls import assert_same, same_bits
from lut_calls import DTYPES, KERNELS, Oracle, all_tables, inputs, knots, run, sampled

import qcore
from qcore.lut import Table

TABLES = dict(all_tables())


def as_dtype(y, dtype):
    with np.errstate(over="ignore"):
        return y.astype(dtype)


@pytest.mark.parametrize("name", TABLES)
def test_reference_is_the_definition(name):
    for dtype in DTYPES:
        x = inputs(dtype)
        assert_same(run("reference", TABLES[name], x), as_dtype(Oracle(TABLES[name])(x), dtype), name, dtype)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_gives_the_references_bits(name, kernel):
    table = pickle.loads(pickle.dumps(TABLES[name]))  # a new one, which has no results of 16-bit numbers yet
    for dtype in DTYPES:
        x = inputs(dtype)
        expected = run("reference", table, x)
        for part in (slice(None, 1000), slice(None), slice(None, 1000)):  # steps, all results made, and taken
            y = run(kernel, table, np.ascontiguousarray(x[part]))
            assert_same(y, expected[part], name, dtype, part)
            assert (np.isnan(x[part].astype(np.float32)) <= np.isnan(y.astype(np.float32))).all()
        integer = np.dtype(f"u{x.dtype.itemsize}")
        nan = np.isnan(y.astype(np.float32))
        assert len(np.unique(y[nan].view(integer))) <= 1, "more than one NaN"


@pytest.mark.parametrize("kernel", KERNELS)
def test_sizes_alignments_and_guards(kernel):
    table = sampled()
    rng = np.random.default_rng(2)
    for dtype in DTYPES:
        for size in [0, 1, 2, 7, 8, 31, 32, 33, 63, 64, 65, 511, 512, 513, 545, 2047, 40000]:
            for shift in (0, 1, 3):
                x = rng.normal(0, 2, size + shift).astype(dtype)[shift:]
                memory = np.full(size + shift + 40, 77, dtype)
                out = memory[shift + 8 : shift + 8 + size]
                assert run(kernel, table, x, out) is out
                assert_same(out, run("reference", table, x), dtype, size, shift)
                assert (memory[: shift + 8] == 77).all() and (memory[shift + 8 + size :] == 77).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_strides_and_dtypes(kernel):
    table = sampled("exp")
    base = np.random.default_rng(3).normal(0, 2, (6, 10, 14)).astype(np.float32)
    views = {
        "transposed": lambda a: a.T,
        "axes": lambda a: a.transpose(1, 2, 0),
        "every third": lambda a: a[:, ::3, 1::3],
        "backwards": lambda a: a[::-1, :, ::-2],
        "one column": lambda a: a[..., 5],
        "repeated": lambda a: np.broadcast_to(a[:, :1], a.shape),
        "scalar": lambda a: a[1, 2, 3:4].reshape(()),
        "nothing": lambda a: a[:, :0],
    }
    for name, view in views.items():
        for x_dtype in DTYPES:
            for y_dtype in DTYPES:
                x = view(base.astype(x_dtype))
                expected = as_dtype(Oracle(table)(x), y_dtype)
                out = np.full(x.shape, 3, y_dtype)
                assert_same(run(kernel, table, x, out), expected, name, x_dtype, y_dtype)
                turned = np.full(x.shape[::-1], 3, y_dtype).T
                assert_same(run(kernel, table, x, turned), expected, name, x_dtype, y_dtype, "out transposed")


@pytest.mark.parametrize("kernel", KERNELS)
def test_in_place(kernel):
    table = sampled()
    for dtype in DTYPES:
        for shape in [(5,), (70_000,), (300, 300)]:
            x = np.random.default_rng(4).normal(0, 2, shape).astype(dtype)
            expected = run("reference", table, x)
            whole = x.copy()
            assert run(kernel, table, whole, whole) is whole
            assert_same(whole, expected)
            strided = np.asfortranarray(x)[::2]
            run(kernel, table, strided, strided)
            assert_same(strided, expected[::2])


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_arrays_and_threads(kernel, dtype):
    table = sampled()
    rng = np.random.default_rng(5)
    x = np.resize(rng.normal(0, 2, 99_991).astype(dtype), 5_000_003)
    period = run("reference", table, x[:99_991])
    before = qcore.get_num_threads()
    try:
        for threads in (1, 2, 4):
            qcore.set_num_threads(threads)
            y = run(kernel, table, x)  # larger than the caches: written past them
            assert same_bits(y[: 50 * 99_991].reshape(50, -1), np.broadcast_to(period, (50, 99_991)).copy())
            assert_same(y[50 * 99_991 :], period[: 5_000_003 - 50 * 99_991])
            odd = np.empty(len(x) + 1, dtype)[1:]
            assert same_bits(run(kernel, table, x, odd), y)
    finally:
        qcore.set_num_threads(before)


def test_special_numbers():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38], np.float32)
    rules = {
        "exp": [np.nan, 65504, 0, 1, 1, 1, 65504],
        "reciprocal": [np.nan, 0, -0.0, 65504, -65504, 65504, 0],
        "sqrt": [np.nan, 65504, np.nan, 0, -0.0, None, 65504],
        "rsqrt": [np.nan, 0, np.nan, 65504, -65504, 65504, None],
        "log": [np.nan, 65504, np.nan, -65504, -65504, None, None],
        "periodic": [np.nan, np.nan, np.nan, None, None, None, None],
    }
    for reduction, expected in rules.items():
        y = sampled(reduction, dtype=np.float32)(x)
        for given, got, wanted in zip(x, y, expected, strict=True):
            if wanted is not None:
                assert_same(np.float32([got]), np.float32([wanted]), reduction, given)
    smallest = np.float32(2.0**-149)
    assert sampled("log", dtype=np.float32)(smallest.reshape(1))[0] == pytest.approx(-149 * np.log(2), rel=1e-4)
    assert sampled("sqrt", dtype=np.float32)(smallest.reshape(1))[0] == pytest.approx(2.0**-74.5, rel=1e-3)
    plain = sampled()
    assert plain(np.float32([np.inf]))[0] == plain.values[-1] and plain(np.float32([-np.inf]))[0] == plain.values[0]


def test_the_ends_give_the_first_and_the_last_entry():
    rng = np.random.default_rng(6)
    for _ in range(200):
        cuts = np.sort(rng.normal(0, 10, 11).astype(np.float32))
        values = rng.normal(0, 1, 259).astype(np.float16)
        table = Table.from_parts(cuts, values)
        x = np.float32([cuts[0], cuts[-1], np.nextafter(cuts[0], np.float32(-99)), cuts[-1] + 1])
        for kernel in KERNELS:
            assert_same(run(kernel, table, x), np.float32([values[0], values[-1], values[0], values[-1]]))


def test_published_cut_points_of_silu():
    """The worked example: x = -2.5 lies in interval 2, between entries 62 and 63."""
    below = [-20.359375, -17.109375, -8.3671875, -1.9755859375, -0.255615234375, -0.007244110107421875]
    above = [0.0072174072265625, 0.228515625, 1.58203125, 10.46875, 65504]
    cuts = np.float32([*below, *above])

    def silu(x):
        return x / (1 + np.exp(-np.minimum(np.maximum(x, -700), 700)))

    values = silu(knots(cuts, 32)).astype(np.float16)
    table = Table.from_parts(cuts, values)
    assert np.searchsorted(cuts, -2.5, side="right") - 1 == 2
    p = (-2.5 - cuts[2]) * np.float32(32) / (cuts[3] - cuts[2])
    assert abs(p - 29.375) < 1e-3
    expected = values[62] + (p - 29) * (np.float32(values[63]) - np.float32(values[62]))
    assert table(np.float32([-2.5]))[0] == pytest.approx(expected, rel=1e-6)
    x = inputs(np.float16)
    x = x[np.isfinite(x)].astype(np.float32)
    exact = silu(x.astype(np.float64))
    error = np.abs(table(x) - exact) / np.maximum(np.abs(exact), 2.0**-14)
    assert error.mean() == pytest.approx(2.175e-4, rel=2e-3)


def test_tables_are_values():
    table = sampled("sqrt")
    again = pickle.loads(pickle.dumps(table))
    assert again == table and hash(again) == hash(table) and again is not table
    assert table != sampled("rsqrt") and table != sampled("sqrt", dtype=np.float32)
    assert repr(table) == "Table('custom', [1, 4], 259 float16 values in 10 intervals, range_reduction='sqrt')"
    assert (table.cuts.dtype, table.values.dtype, table.segments, table.table_dtype) == (
        "float32",
        "float16",
        32,
        "float16",
    )
    table.cuts[:] = 0
    assert table.cuts[0] == 1


def test_files(tmp_path):
    table = sampled("log")
    path = tmp_path / "log.safetensors"
    table.save(path)
    assert Table.load(path) == table
    assert [p.name for p in tmp_path.iterdir()] == ["log.safetensors"]
    with pytest.raises(FileNotFoundError):
        Table.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError, match=f"it is a folder, expected a file: '{tmp_path}'"):
        Table.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        table.save(tmp_path / "no" / "folder")
    (tmp_path / "bad").write_bytes(b"nothing of use")
    with pytest.raises(qcore.QcoreValueError, match="bad is not a table's safetensors file"):
        Table.load(tmp_path / "bad")
    from safetensors.numpy import save_file

    save_file({"cuts": table.cuts}, tmp_path / "half", {"format": "qcore.lut.1"})
    with pytest.raises(qcore.QcoreValueError, match="half"):
        Table.load(tmp_path / "half")
    save_file({"cuts": table.cuts, "values": table.values}, tmp_path / "old", {"format": "qcore.lut.0"})
    with pytest.raises(qcore.QcoreValueError, match=r"'qcore.lut.0', expected 'qcore.lut.1'"):
        Table.load(tmp_path / "old")


CUTS, VALUES = np.linspace(0, 1, 4).astype(np.float32), np.zeros(5, np.float16)


@pytest.mark.parametrize(
    ("cuts", "values", "options", "error", "words"),
    [
        (CUTS[:2], VALUES, {}, ValueError, "cuts have shape [2], expected [n + 1] with 2 to 256 intervals"),
        (CUTS.astype(np.float64), VALUES, {}, TypeError, "float64"),
        (CUTS.astype(np.float16), VALUES, {}, TypeError, "cuts has dtype float16, expected float32"),
        (CUTS, VALUES.astype(ml_dtypes.bfloat16), {}, TypeError, "values have dtype bfloat16"),
        (CUTS, VALUES[:3], {}, ValueError, "values have shape [3], expected [3 + 1 * s] for 4 cuts"),
        (CUTS[::-1], VALUES, {}, ValueError, "cuts[1] is 0.666667 after 1, expected increasing"),
        (np.float32([0, 1, np.nan, 3]), VALUES, {}, ValueError, "cuts[2] is nan, expected a finite"),
        (CUTS, np.float32([0, 1, 2, 70000, 3]), {}, ValueError, "values[3] is 70000, expected a number within"),
        (CUTS, np.float16([0, 1, np.nan, 0, 3]), {}, ValueError, "values[2] is nan"),
        (np.float32([0, 1e-45, 1, 2]), VALUES, {}, ValueError, "too close together"),
        (np.float32([-3e38, 0, 3e38, 3.1e38]), VALUES, {}, ValueError, "too far apart"),
        (CUTS, VALUES, {"range_reduction": "cube"}, ValueError, "range_reduction is 'cube', expected one of 'none'"),
        (CUTS, VALUES, {"name": 3}, TypeError, "name is 3, expected a string"),
        ([0, 1], VALUES, {}, TypeError, "cuts is a list"),
    ],
)
def test_bad_parts(cuts, values, options, error, words):
    with pytest.raises(error) as caught:
        Table.from_parts(cuts, values, **options)
    assert words in str(caught.value) and str(caught.value).startswith("lut table: ")
    assert isinstance(caught.value, qcore.QcoreError)


def overlapping():
    memory = np.zeros(10, np.float32)
    return memory[:-1], memory[1:]


@pytest.mark.parametrize(
    ("x", "out", "error", "words"),
    [
        (np.zeros(3), None, TypeError, "float64"),
        (np.zeros(3, np.int32), None, TypeError, "int32"),
        ([1.0], None, TypeError, "lut: x is a list"),
        (np.zeros(3, np.float32), np.zeros(4, np.float32), ValueError, "out has shape [4], expected [3]"),
        (np.zeros(3, np.float32), np.zeros(3, np.int8), TypeError, "out has dtype int8"),
        (np.zeros(3, np.float32), np.broadcast_to(np.float32(0), (3,)), ValueError, "out"),
        (*overlapping(), ValueError, "out overlaps x in memory"),
    ],
)
def test_bad_calls(x, out, error, words):
    before = None if out is None else out.copy()
    with pytest.raises(error) as caught:
        sampled()(x, out)
    assert words in str(caught.value) and str(caught.value).startswith("lut: ")
    if before is not None:
        assert (out == before).all()


def test_unknown_names():
    with pytest.raises(
        qcore.QcoreValueError, match=r"there is no table 'sine', expected one of cos, .*, tanh, or a callable$"
    ):
        qcore.lut.table("sine")
    with pytest.raises(qcore.QcoreValueError, match="no table 'silu' with range reduction, expected one of exp"):
        qcore.lut.table("silu", range_reduction=True)
    with pytest.raises(qcore.QcoreTypeError, match="name_or_callable is 3, expected a name or a callable"):
        qcore.lut.table(3)
    with pytest.raises(qcore.QcoreTypeError, match="range_reduction is 1, expected True, False or None"):
        qcore.lut.table("exp", range_reduction=1)
    with pytest.raises(AttributeError, match="no attribute 'sine'"):
        qcore.lut.sine  # noqa: B018


def test_table_of_kernels():
    for op in ("lut", "softmax", "rms_norm"):
        rows = [row.name for row in qcore.kernels(op)]
        assert rows[-1] == "reference"
        isa = qcore.info()["isa"]
        assert ("avx2" in isa) == ("avx2" in [row.name for row in qcore.kernels(op) if row.available])
    sampled()(np.zeros(3, np.float32))
    assert qcore.last_kernel("lut") == KERNELS[0]
