"""NumPy arrays and plain DLPack producers: whose memory is read and written, and what comes back."""

import sys
import types

import ml_dtypes
import numpy as np
import pytest
from array_operators import operators, sources
from dlpack_memory import data_address

import qcore
from qcore import _arrays, _core

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
by_name = {"ids": lambda dtype: dtype.__name__}

WEIGHT = qcore.quantize(np.random.default_rng(0).standard_normal((20, 70), dtype=np.float32), block_size=32)


class Producer:
    """Nothing but the DLPack protocol, a shape and a dtype."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class Bare:
    """Nothing but the DLPack protocol, and parts of an array for the operators of array_operators.py."""

    def __init__(self, array):
        self.array = array

    def __getitem__(self, index):
        return Bare(self.array[index])

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def address(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else data_address(array)


def values(*shape, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(dtype)


@pytest.fixture
def seen(monkeypatch):
    """Return the addresses of x, bias and out of every call that reaches the core."""
    calls = []
    original = _core.linear

    def spy(x, weight, bias, out, *rest):
        calls.append([address(array) for array in (x, bias, out)])
        return original(x, weight, bias, out, *rest)

    monkeypatch.setattr(_core, "linear", spy)
    return calls


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
def test_numpy_memory_is_shared(seen, dtype):
    x, bias, out = values(4, 70, dtype=dtype), values(20, dtype=dtype), np.zeros((4, 20), dtype)
    y = qcore.linear(x, WEIGHT, bias)
    assert qcore.linear(x, WEIGHT, bias, out=out) is out
    assert seen == [[x.ctypes.data, bias.ctypes.data, result.ctypes.data] for result in (y, out)]
    np.testing.assert_array_equal(y, out)


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
def test_strided_numpy_memory_is_shared(seen, dtype):
    x, bias = values(140, 4, dtype=dtype)[::-2].T, values(40, dtype=dtype)[::2]
    out = np.zeros((20, 8), dtype)[:, ::-2].T
    qcore.linear(x, WEIGHT, bias, out=out)
    assert seen == [[x.ctypes.data, bias.ctypes.data, out.ctypes.data]]
    np.testing.assert_array_equal(out, qcore.linear(x.copy(), WEIGHT, bias.copy()))


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
def test_results_are_aligned_and_new(dtype):
    results = [qcore.linear(values(m, 70, dtype=dtype), WEIGHT) for m in (0, 1, 2, 3, 17)]
    activations = qcore.quantize_activations(values(3, 70, dtype=dtype), 16, "int8_asym")
    results += [activations.codes, activations.scales, activations.offsets]
    for y in results:
        assert type(y) is np.ndarray
        assert y.ctypes.data % 64 == 0
        assert y.flags.c_contiguous
        assert y.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES[:2], **by_name)
def test_plain_producer(seen, dtype):
    x, bias, out = values(4, 70, dtype=dtype), values(20, dtype=dtype), np.zeros((4, 20), dtype)
    expected = qcore.linear(x, WEIGHT, bias)
    target = Producer(out)
    assert qcore.linear(Producer(x), WEIGHT, Producer(bias), out=target) is target
    np.testing.assert_array_equal(out, expected)
    y = qcore.linear(Producer(x), WEIGHT, Producer(bias))
    assert type(y) is np.ndarray
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)
    assert seen[1] == [x.ctypes.data, bias.ctypes.data, out.ctypes.data]
    assert seen[2] == [x.ctypes.data, bias.ctypes.data, y.ctypes.data]


@pytest.mark.parametrize("name", operators())
def test_producer_without_shape_and_dtype(name):
    function = operators()[name]
    expected, results = (
        result if isinstance(result, tuple) else (result,)
        for result in (function(sources()), function({key: Bare(array) for key, array in sources().items()}))
    )
    for wanted, got in zip(expected, results, strict=True):
        assert type(got) is np.ndarray
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_producer_without_shape_that_numpy_cannot_read():
    message = r"linear: x is a Bare without shape and dtype, and NumPy can't read it, expected an array with shape and "
    with pytest.raises(qcore.QcoreTypeError, match=message):
        qcore.linear(Bare(values(4, 70, dtype=ml_dtypes.bfloat16)), WEIGHT)


@pytest.mark.parametrize("device", ["cpu", (1,), 1, None, ("cpu", 0), (1, 0, 0)], ids=str)
def test_producer_with_another_kind_of_device(device):
    class Elsewhere(Producer):
        def __dlpack_device__(self):
            return device

    x = Elsewhere(values(4, 70))
    message = f"x is a Elsewhere whose __dlpack_device__() returns {device!r}, expected two integers: the device's type"
    for where, call in (
        ("linear", lambda: qcore.linear(x, WEIGHT)),
        ("linear", lambda: qcore.linear(x, WEIGHT, out=np.zeros((4, 20), np.float32))),
        ("lut", lambda: qcore.lut.silu(x)),
        ("softmax", lambda: qcore.lut.softmax(x, stream=5)),
    ):
        with pytest.raises(qcore.QcoreTypeError) as caught:
            call()
        assert str(caught.value).startswith(f"{where}: {message}")


@pytest.mark.parametrize("name", [name for name in _arrays.DTYPES if name != "bfloat16"])  # which NumPy lacks
def test_results_for_a_plain_producer_have_the_dtype_that_is_asked_for(name):
    backend, x = _arrays.DLPackBackend(), Producer(values(4, 70))
    made = backend.result(backend.empty(x, (2, 3), name, "linear: x"), x)
    assert (made.dtype, made.shape) == (name, (2, 3))


def test_results_beyond_memory_name_operator_and_size():
    image = np.zeros((1, 32, 3, 3), np.float32)
    kernel = qcore.quantize(np.ones((4, 32, 3, 3), np.float32))
    message = r"conv2d: a result would be float32 \[1, 4, 2000000001, 2000000001\], \d+ bytes, expected one that fits"
    with pytest.raises(qcore.QcoreValueError, match=message):
        qcore.conv2d(image, kernel, padding=10**9)


def test_plain_producer_of_read_only_memory():
    x = values(4, 70)
    expected = qcore.linear(x, WEIGHT)
    x.flags.writeable = False
    np.testing.assert_array_equal(qcore.linear(Producer(x), WEIGHT), expected)
    out = np.full((4, 20), 7, np.float32)
    out.flags.writeable = False
    with pytest.raises(qcore.QcoreValueError, match="linear: out is read-only, expected a writable array"):
        qcore.linear(x, WEIGHT, out=Producer(out))
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
def test_read_only_inputs(dtype):
    arrays = values(4, 70, dtype=dtype), values(20, dtype=dtype)
    expected = qcore.linear(arrays[0], WEIGHT, arrays[1])
    for array in arrays:
        array.flags.writeable = False
    np.testing.assert_array_equal(qcore.linear(arrays[0], WEIGHT, arrays[1]), expected)


def test_subclasses_of_numpy():
    x = values(4, 70)
    expected = qcore.linear(x, WEIGHT)

    class Tagged(np.ndarray):
        pass

    np.testing.assert_array_equal(qcore.linear(x.view(Tagged), WEIGHT), expected)
    np.testing.assert_array_equal(qcore.linear(x.view(np.recarray), WEIGHT), expected)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_spellings_of_a_dtype(name):
    x = values(2, 70)
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    for spelling in (name, dtype, dtype.type):
        assert qcore.linear(x, WEIGHT, out_dtype=spelling).dtype == dtype
        assert WEIGHT.dequantize(spelling).dtype == dtype


def test_cupy_works_on_the_device_of_the_array(monkeypatch):
    """A stand-in for cupy, which makes no array without a device; gpu/test_cupy_cuda.py has the real one."""
    current = [0]

    class Device(int):
        def __enter__(self):
            current.append(int(self))

        def __exit__(self, *error):
            current.pop()

    def made(*arguments, **options):
        return types.SimpleNamespace(device=Device(current[-1]))

    cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=100 + current[-1]))
    module = types.SimpleNamespace(cuda=cuda, empty=made, empty_like=made, take=made, asarray=made)
    monkeypatch.setitem(sys.modules, "cupy", module)
    backend, x = _arrays.CuPyBackend(), types.SimpleNamespace(device=Device(1), dtype="float32")
    results = [
        backend.empty(x, (2, 3), None, "linear: x"),
        *backend.new_like(x, "lut: out"),
        backend.take(x, np.arange(3)),
    ]
    assert [result.device for result in results] == [1, 1, 1, 1]
    assert backend.stream(x) == 101
    assert current == [0]
