"""Every kind of bad input has its own clear message, and nothing is written to out.

Messages are compared in full: they are part of the interface.
"""

import ml_dtypes
import numpy as np
import pytest
from dlpack_memory import with_device_type

import qcore

ValueErr, TypeErr = qcore.QcoreValueError, qcore.QcoreTypeError
FLOATING = "float32, float16 or bfloat16"
ARRAY = "an array with __dlpack__ (numpy, torch, jax, cupy, ...)"

WEIGHT = qcore.quantize(np.ones((3, 8), np.float32), bits=8, block_size=4)
CONVOLUTION = qcore.quantize(np.ones((3, 8, 3, 3), np.float32))


def x_ok():
    return np.ones((2, 8), np.float32)


def out_ok():
    return np.full((2, 3), 7, np.float32)


def check(kind, message, call, *arguments, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert type(caught.value) is kind
    assert str(caught.value) == message


def refuse_linear(kind, message, x=None, weight=WEIGHT, bias=None, **options):
    """Check that the call fails with this message, with and without a good out=, and leaves out as it was."""
    x = x_ok() if x is None else x
    check(kind, f"linear: {message}", qcore.linear, x, weight, bias, **options)
    if "out" in options or "out_dtype" in options:
        return
    out = out_ok()
    check(kind, f"linear: {message}", qcore.linear, x, weight, bias, out=out, **options)
    assert (out == 7).all()


def refuse_out(kind, message, out, x=None, bias=None):
    memory = np.asarray(out)
    before = memory.copy()
    refuse_linear(kind, message, x, bias=bias, out=out)
    np.testing.assert_array_equal(memory, before)


def read_only(array):
    array.flags.writeable = False
    return array


def misaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    result = memory.view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def in_a_structure(array):
    """Return the array with a stride of itemsize + 1 bytes."""
    records = np.zeros(array.shape, [("value", array.dtype), ("rest", np.int8)])
    records["value"] = array
    return records["value"]


# The exceptions themselves


def test_exception_classes():
    assert issubclass(qcore.QcoreValueError, (qcore.QcoreError, ValueError))
    assert issubclass(qcore.QcoreValueError, qcore.QcoreError)
    assert issubclass(qcore.QcoreValueError, ValueError)
    assert issubclass(qcore.QcoreTypeError, qcore.QcoreError)
    assert issubclass(qcore.QcoreTypeError, TypeError)
    assert issubclass(qcore.CudaError, qcore.QcoreError)
    assert issubclass(qcore.CudaError, RuntimeError)
    assert issubclass(qcore.QcoreError, Exception)
    names = [kind.__name__ for kind in (qcore.QcoreError, ValueErr, TypeErr, qcore.CudaError)]
    assert names == ["QcoreError", "QcoreValueError", "QcoreTypeError", "CudaError"]
    assert {kind.__module__ for kind in (qcore.QcoreError, ValueErr, TypeErr, qcore.CudaError)} == {"qcore"}


# linear: x


@pytest.mark.parametrize(
    "dtype",
    [np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.complex64, np.bool_, np.object_],
    ids=lambda dtype: dtype.__name__,
)
def test_x_dtype(dtype):
    refuse_linear(TypeErr, f"x has dtype {np.dtype(dtype)}, expected {FLOATING}", x_ok().astype(dtype))


def test_x_dtype_beyond_numbers():
    refuse_linear(TypeErr, f"x has dtype <U32, expected {FLOATING}", x_ok().astype(str))
    refuse_linear(TypeErr, f"x has dtype [('a', '<f4')], expected {FLOATING}", np.zeros((2, 8), [("a", "<f4")]))
    refuse_linear(TypeErr, f"x has dtype >f4, expected {FLOATING}", x_ok().astype(">f4"))
    for dtype in (ml_dtypes.float8_e4m3fn, "datetime64[s]"):
        x = x_ok().astype(dtype)
        with pytest.raises(TypeErr) as caught:
            qcore.linear(x, WEIGHT)
        start = (
            f"linear: x is a ndarray of dtype {x.dtype} that does not export its memory, expected an array that does: "
        )
        assert str(caught.value).startswith(start)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "name"),
    [
        ([[1.0] * 8], "list"),
        (((1.0,) * 8,), "tuple"),
        (3.5, "float"),
        ("x", "str"),
        (b"12345678", "bytes"),
        (memoryview(np.ones((2, 8), np.float32)), "memoryview"),
        (object(), "object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_x_that_is_no_array(x, name):
    refuse_linear(TypeErr, f"x is a {name}, expected {ARRAY}", x)


def test_x_none():
    check(TypeErr, f"linear: x is a NoneType, expected {ARRAY}", qcore.linear, None, WEIGHT)


def test_x_masked():
    message = "x is a masked array, expected a plain one: fill it first"
    for dtype in (np.float32, ml_dtypes.bfloat16):
        refuse_linear(TypeErr, message, np.ma.masked_array(x_ok().astype(dtype)))


@pytest.mark.parametrize("shape", [(2, 7), (2, 9), (8, 2), (3,), (2, 8, 1), (2, 0)], ids=str)
def test_x_with_another_k(shape):
    text = f"x has shape {list(shape)}, expected its last dimension to be K = 8 of the weight [3, 8]"
    refuse_linear(ValueErr, text, np.ones(shape, np.float32))


def test_x_rank():
    refuse_linear(ValueErr, "x has shape [], expected [..., K] with K = 8", np.float32(1))
    refuse_linear(ValueErr, "x has shape [], expected [..., K] with K = 8", np.ones((), np.float32))
    refuse_linear(ValueErr, "x has rank 9, expected at most 8", np.ones((1,) * 8 + (8,), np.float32))
    refuse_linear(ValueErr, "x has rank 9, expected at most 8", np.ones((1,) * 8 + (8,), ml_dtypes.bfloat16))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_x_memory_that_no_element_stride_describes(dtype):
    size = np.dtype(dtype).itemsize
    text = f"x is not aligned to its element size, expected {size}-byte alignment: copy it first"
    refuse_linear(ValueErr, text, misaligned(x_ok().astype(dtype)))
    text = f"x has a stride of {size + 1} bytes, expected a multiple of its element size {size}: copy it first"
    refuse_linear(ValueErr, text, in_a_structure(x_ok()[0].astype(dtype)))


class OnCuda:
    """A DLPack producer that says its (host) memory is on a CUDA device: there is none to ask for one."""

    KIND = 2

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack_device__(self):
        return (self.KIND, 0)

    def __dlpack__(self, **options):
        return with_device_type(self.array.__dlpack__(), self.KIND)


class OnMetal(OnCuda):
    KIND = 8


def test_device_mix():
    out = out_ok()
    message = "linear: x is on cuda:0 and the weight on cpu, expected the same device: weight.to(...) moves it"
    check(ValueErr, message, qcore.linear, OnCuda(x_ok()), WEIGHT, out=out)
    message = "linear: out is on cuda:0, expected cpu like x"
    check(ValueErr, message, qcore.linear, x_ok(), WEIGHT, out=OnCuda(out))
    message = "linear: bias is on cuda:0, expected cpu like x"
    check(ValueErr, message, qcore.linear, x_ok(), WEIGHT, OnCuda(np.ones(3, np.float32)), out=out)
    message = "quantize: weight is on cuda:0, expected cpu like every weight to quantize"
    check(ValueErr, message, qcore.quantize, OnCuda(x_ok()))
    assert (out == 7).all()


def test_device_of_another_kind():
    message = "linear: x is on a device of DLPack type 8, expected the CPU or a CUDA device"
    check(ValueErr, message, qcore.linear, OnMetal(x_ok()), WEIGHT, out=out_ok())


def test_results_of_an_unknown_library_are_made_on_the_cpu():
    message = (
        f"linear: x is a {__name__}.OnCuda on another device than the CPU, where no results can be made for it: pass "
        "out= in an array of this device"
    )
    check(ValueErr, message, qcore.linear, OnCuda(x_ok()), WEIGHT)


def test_producer_that_fails():
    class Broken:
        shape, dtype = (2, 8), np.dtype(np.float32)

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            raise RuntimeError("memory is elsewhere\nand a second line")

    message = (
        f"linear: x is a {__name__}.Broken of dtype float32 that does not export its memory, "
        "expected an array that does: memory is elsewhere"
    )
    check(TypeErr, message, qcore.linear, Broken(), WEIGHT)


def test_interrupt_of_a_producer_is_not_swallowed():
    class Interrupted(OnCuda):
        KIND = 1

        def __dlpack__(self, **options):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qcore.linear(Interrupted(x_ok()), WEIGHT)


# linear: weight, compute, activation, stream


@pytest.mark.parametrize(("weight", "name"), [(np.ones((3, 8), np.float32), "ndarray"), (None, "NoneType"), (3, "int")])
def test_weight_that_is_not_quantized(weight, name):
    text = f"weight is a {name}, expected a QuantizedTensor: qcore.quantize(weight) makes one"
    refuse_linear(TypeErr, text, weight=weight)


def test_convolution_weight():
    text = "weight has 9 taps (a convolution's), expected [N, K], or [N, K, 1, 1]"
    refuse_linear(ValueErr, text, weight=CONVOLUTION)


@pytest.mark.parametrize("compute", ["int4", "FLOAT", "", 1, [], np.float32], ids=repr)
def test_compute(compute):
    text = f"compute is {compute!r}, expected one of 'float', 'int8', 'int8_asym', 'int16', 'int8_token'"
    refuse_linear(ValueErr, text, compute=compute)


@pytest.mark.parametrize(
    "activation",
    ["erf", "", b"ab", 3, (1,), (0, 1, 2), (), ("a", "b"), (None, 1), (0, 1j), (0, 10**400), {}],
    ids=lambda value: repr(value)[:20],
)
def test_activation(activation):
    text = (
        f"activation is {activation!r}, expected None, 'relu', 'relu6', 'silu', 'gelu', 'gelu_tanh', 'tanh', "
        "'sigmoid', 'silu_mul' or a pair (lo, hi)"
    )
    refuse_linear(ValueErr, text, activation=activation)


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        ((1, 0), "(1, 0)"),
        ((0.5, -np.inf), "(0.5, -inf)"),
        ((np.nan, 1), "(nan, 1)"),
        ((0, np.nan), "(0, nan)"),
        (np.float32([2, 1]), "(2, 1)"),
    ],
    ids=str,
)
def test_activation_bounds(bounds, shown):
    refuse_linear(ValueErr, f"activation clamps to {shown}, expected lo <= hi", activation=bounds)


@pytest.mark.parametrize("stream", ["default", -1, True, 1.5, 2**64, []], ids=repr)
def test_stream(stream):
    refuse_linear(TypeErr, f"stream is {stream!r}, expected a stream object or its address", stream=stream)


def test_the_cpu_has_no_streams():
    np.testing.assert_array_equal(qcore.linear(x_ok(), WEIGHT, stream=0), qcore.linear(x_ok(), WEIGHT))
    for stream in (5, 2**64 - 1):
        text = f"stream is {stream} and the arrays are on the CPU, expected None or 0: only CUDA devices have streams"
        refuse_linear(ValueErr, text, stream=stream)


# linear: bias


@pytest.mark.parametrize("shape", [(), (2,), (4,), (1, 3), (3, 1), (0,)], ids=str)
def test_bias_shape(shape):
    refuse_linear(ValueErr, f"bias has shape {list(shape)}, expected [3]", bias=np.ones(shape, np.float32))


@pytest.mark.parametrize(
    "dtype", [np.float64, np.int32, np.int64, np.bool_, np.complex64], ids=lambda dtype: dtype.__name__
)
def test_bias_dtype(dtype):
    refuse_linear(TypeErr, f"bias has dtype {np.dtype(dtype)}, expected {FLOATING}", bias=np.ones(3, dtype))


def test_bias_that_is_no_plain_array():
    refuse_linear(TypeErr, f"bias is a list, expected {ARRAY}", bias=[1.0, 2.0, 3.0])
    refuse_linear(TypeErr, f"bias is a float, expected {ARRAY}", bias=0.5)
    text = "bias is a masked array, expected a plain one: fill it first"
    refuse_linear(TypeErr, text, bias=np.ma.ones(3, np.float32))
    text = "bias is not aligned to its element size, expected 4-byte alignment: copy it first"
    refuse_linear(ValueErr, text, bias=misaligned(np.ones(3, np.float32)))


# linear: out


@pytest.mark.parametrize("shape", [(2, 4), (3, 2), (2, 3, 1), (6,), (1, 3), ()], ids=str)
def test_out_shape(shape):
    refuse_out(ValueErr, f"out has shape {list(shape)}, expected [2, 3]", np.ones(shape, np.float32))


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.int32, np.bool_], ids=lambda dtype: dtype.__name__)
def test_out_dtype_of_the_array(dtype):
    refuse_out(TypeErr, f"out has dtype {np.dtype(dtype)}, expected {FLOATING}", np.ones((2, 3), dtype))


def test_out_that_is_no_plain_array():
    refuse_linear(TypeErr, f"out is a list, expected {ARRAY}", out=[[0.0] * 3] * 2)
    text = "out is a masked array, expected a plain one: fill it first"
    refuse_out(TypeErr, text, np.ma.masked_array(out_ok()))
    text = "out is not aligned to its element size, expected 4-byte alignment: copy it first"
    refuse_out(ValueErr, text, misaligned(out_ok()))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_out_read_only(dtype):
    refuse_out(ValueErr, "out is read-only, expected a writable array", read_only(out_ok().astype(dtype)))


def test_out_that_is_x():
    square = qcore.quantize(np.ones((8, 8), np.float32))
    x = x_ok()
    check(ValueErr, "linear: out overlaps x in memory, expected separate arrays", qcore.linear, x, square, out=x)
    assert (x == 1).all()


@pytest.mark.parametrize("first", [0, 5, 15])
def test_out_overlapping_x(first):
    memory = np.arange(24, dtype=np.float32)
    x, out = memory[4:20].reshape(2, 8), memory[first : first + 6].reshape(2, 3)
    refuse_out(ValueErr, "out overlaps x in memory, expected separate arrays", out, x)
    np.testing.assert_array_equal(memory, np.arange(24))


def test_out_beside_x_is_fine():
    memory = np.ones(28, np.float32)
    expected = qcore.linear(x_ok(), WEIGHT)
    for first in (0, 22):
        out = memory[first : first + 6].reshape(2, 3)
        np.testing.assert_array_equal(qcore.linear(memory[6:22].reshape(2, 8), WEIGHT, out=out), expected)


def test_out_overlapping_bias():
    memory = np.arange(8, dtype=np.float32)
    text = "out overlaps bias in memory, expected separate arrays"
    refuse_out(ValueErr, text, memory[:6].reshape(2, 3), bias=memory[5:])
    refuse_out(ValueErr, text, memory[2:].reshape(2, 3), bias=memory[2::-1])


@pytest.mark.parametrize(
    ("strides", "shown"), [((0, 4), "[0, 1]"), ((4, 4), "[1, 1]"), ((12, 0), "[3, 0]"), ((8, 4), "[2, 1]")], ids=str
)
def test_out_whose_elements_share_memory(strides, shown):
    out = np.lib.stride_tricks.as_strided(np.ones(9, np.float32), (2, 3), strides)
    text = f"out with shape [2, 3] and strides {shown} has elements that share memory, expected each to have its own"
    refuse_out(ValueErr, text, out)


def test_out_and_out_dtype():
    out = out_ok()
    text = "out and out_dtype are both given, expected at most one of them"
    refuse_linear(ValueErr, text, out=out, out_dtype="float32")
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", ["int8", "float64", "half", np.float64, np.int32, 7, list, ""], ids=repr)
def test_out_dtype(dtype):
    refuse_linear(TypeErr, f"out_dtype is {dtype!r}, expected {FLOATING}", out_dtype=dtype)


# quantize


def refuse_quantize(kind, message, weight=None, **options):
    weight = np.ones((3, 8), np.float32) if weight is None else weight
    check(kind, f"quantize: {message}", qcore.quantize, weight, **options)


@pytest.mark.parametrize("shape", [(), (8,), (2, 3, 8), (1, 2, 3, 4, 5)], ids=str)
def test_weight_rank(shape):
    text = f"weight has shape {list(shape)}, expected [N, K] or [Co, Ci, Kh, Kw]"
    refuse_quantize(ValueErr, text, np.ones(shape, np.float32))


@pytest.mark.parametrize(
    "dtype", [np.float64, np.int8, np.int64, np.complex64, np.bool_], ids=lambda dtype: dtype.__name__
)
def test_weight_dtype(dtype):
    refuse_quantize(TypeErr, f"weight has dtype {np.dtype(dtype)}, expected {FLOATING}", np.ones((3, 8), dtype))


def test_weight_that_is_no_plain_array():
    refuse_quantize(TypeErr, f"weight is a list, expected {ARRAY}", [[1.0]])
    check(TypeErr, f"quantize: weight is a NoneType, expected {ARRAY}", qcore.quantize, None)
    refuse_quantize(
        TypeErr, "weight is a masked array, expected a plain one: fill it first", np.ma.ones((3, 8), np.float32)
    )


@pytest.mark.parametrize("bits", [0, 1, 7, 9, 16, -4])
def test_bits(bits):
    refuse_quantize(ValueErr, f"bits is {bits}, expected 2, 3, 4, 5, 6 or 8", bits=bits)


@pytest.mark.parametrize("size", [0, -1, 2**31, 2**40])
def test_block_size(size):
    refuse_quantize(ValueErr, f"block_size is {size}, expected an integer from 1 to 2147483647", block_size=size)


@pytest.mark.parametrize("value", [4.0, True, "8", None, [8], np.float32(8)], ids=repr)
@pytest.mark.parametrize("name", ["bits", "block_size"])
def test_integers_that_are_none(name, value):
    refuse_quantize(TypeErr, f"{name} is {value!r}, expected an integer", **{name: value})


@pytest.mark.parametrize(("name", "bits"), [("bits", 32), ("block_size", 64)])
def test_integers_beyond_all_limits(name, bits):
    refuse_quantize(ValueErr, f"{name} is {2**80}, expected an integer of {bits} bits", **{name: 2**80})


def test_numpy_integers_are_integers():
    weight = qcore.quantize(np.ones((3, 8), np.float32), bits=np.int8(8), block_size=np.uint64(4))
    assert (weight.bits, weight.block_size) == (8, 4)


@pytest.mark.parametrize("value", ["sym", None, 3, []], ids=repr)
def test_scheme_and_method(value):
    refuse_quantize(ValueErr, f"scheme is {value!r}, expected one of 'symmetric', 'asymmetric'", scheme=value)
    refuse_quantize(ValueErr, f"method is {value!r}, expected one of 'rtn', 'mse', 'awq', 'gptq'", method=value)


# QuantizedTensor


def parts(**changed):
    made = {
        "codes": np.zeros((3, 8), np.int8),
        "scales": np.ones((3, 2), np.float32),
        "offsets": np.ones((3, 2), np.float32),
    }
    return made | {"bits": 4, "block_size": 4} | changed


def refuse_parts(kind, message, **changed):
    check(kind, f"from_parts: {message}", qcore.QuantizedTensor.from_parts, **parts(**changed))


def test_constructor():
    message = "QuantizedTensor() makes no tensor: use qcore.quantize(weight, ...) or QuantizedTensor.from_parts(...)"
    check(TypeErr, message, qcore.QuantizedTensor)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int16, np.int64], ids=lambda dtype: dtype.__name__)
def test_codes_dtype(dtype):
    refuse_parts(TypeErr, f"codes has dtype {np.dtype(dtype)}, expected int8", codes=np.zeros((3, 8), dtype))


@pytest.mark.parametrize("name", ["scales", "offsets"])
def test_parameters(name):
    for dtype in (np.float64, np.int8):
        text = f"{name} has dtype {np.dtype(dtype)}, expected float32, float16 or bfloat16"
        refuse_parts(TypeErr, text, **{name: np.ones((3, 2), dtype)})
    for shape in ((3, 1), (2, 2), (3, 2, 1), (6,)):
        refuse_parts(ValueErr, f"{name} has shape {list(shape)}, expected [3, 2]", **{name: np.ones(shape, np.float32)})
    for value in (np.nan, np.inf):
        bad = np.ones((3, 2), np.float32)
        bad[1, 1] = bad[2, 0] = value
        text = f"{name} holds a NaN or an infinity, the first at index [1, 1], expected finite values"
        refuse_parts(ValueErr, text, **{name: bad})
    refuse_parts(TypeErr, f"{name} is a list, expected {ARRAY}", **{name: [[1.0, 1.0]] * 3})


def test_scales_are_needed():
    refuse_parts(TypeErr, f"scales is a NoneType, expected {ARRAY}", scales=None)


@pytest.mark.parametrize("value", [-128, -9, 8, 127])
def test_codes_out_of_range(value):
    codes = np.zeros((3, 8), np.int8)
    codes[2, 5] = value
    refuse_parts(ValueErr, f"codes holds {value} at row 2, k 5, expected -8 to 7 for bits=4", codes=codes)
    assert qcore.QuantizedTensor.from_parts(**parts(codes=codes, bits=8)).codes()[2, 5] == value


def test_parts_rank_bits_and_block_size():
    text = "codes has shape [8], expected [N, K] or [Co, Ci, Kh, Kw]"
    refuse_parts(ValueErr, text, codes=np.zeros(8, np.int8))
    refuse_parts(ValueErr, "bits is 6, expected 4 or 8", bits=6)
    refuse_parts(TypeErr, "bits is 4.0, expected an integer", bits=4.0)
    refuse_parts(ValueErr, "block_size is 0, expected an integer from 1 to 2147483647", block_size=0)
    refuse_parts(TypeErr, "block_size is True, expected an integer", block_size=True)


@pytest.mark.parametrize("device", ["tpu", "", "cuda:", "cuda:x", "cpu:1", "CPU", "cuda:12345", None, 0], ids=repr)
def test_to_an_unknown_device(device):
    check(ValueErr, f"to: device is {device!r}, expected 'cpu', 'cuda' or 'cuda:<index>'", WEIGHT.to, device)


def test_to_a_cuda_device_that_does_not_exist():
    """With CUDA or without: no machine has 9,999 devices."""
    cuda = qcore.info()["cuda"]
    if not cuda["built"]:
        text = "device cuda:9998: this build of qcore has no CUDA backend; build it with QCORE_CUDA=on"
    elif cuda["device_count"] == 0:
        text = "there is no CUDA device: "
    else:
        text = "there is no device cuda:9998: "
    with pytest.raises(qcore.CudaError) as caught:
        WEIGHT.to("cuda:9998")
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("dtype", ["int8", "float64", np.float64, 3], ids=repr)
def test_dequantize_dtype(dtype):
    check(TypeErr, f"dequantize: dtype is {dtype!r}, expected {FLOATING}", WEIGHT.dequantize, dtype)


# quantize_activations


def refuse_activations(kind, message, x=None, block_size=4, mode="int8"):
    x = x_ok() if x is None else x
    check(kind, f"quantize_activations: {message}", qcore.quantize_activations, x, block_size, mode)


def test_activations():
    refuse_activations(ValueErr, "x has shape [], expected [..., K]", np.ones((), np.float32))
    for size in (0, -1, -(2**40)):
        refuse_activations(ValueErr, f"y.block_size is {size}, expected 1 or more", block_size=size)
    for size in (4.0, False):
        refuse_activations(TypeErr, f"block_size is {size!r}, expected an integer", block_size=size)
    for mode in ("float", "int4", None, {}):
        refuse_activations(ValueErr, f"compute is {mode!r}, expected one of 'int8', 'int8_asym', 'int16'", mode=mode)
    refuse_activations(TypeErr, f"x has dtype float64, expected {FLOATING}", np.ones((2, 8)))
    refuse_activations(TypeErr, f"x is a list, expected {ARRAY}", [[1.0]])
    text = "x is a masked array, expected a plain one: fill it first"
    refuse_activations(TypeErr, text, np.ma.ones((2, 8), np.float32))


# Threads


@pytest.mark.parametrize("n", [0, -1, 1025, 2**31 - 1])
def test_thread_count(n):
    before = qcore.get_num_threads()
    check(ValueErr, f"set_num_threads: n is {n}, expected 1 to 1024", qcore.set_num_threads, n)
    assert qcore.get_num_threads() == before


def test_thread_count_that_is_no_integer():
    for n in (2.0, True, "2", None):
        check(TypeErr, f"set_num_threads: n is {n!r}, expected an integer", qcore.set_num_threads, n)
    check(ValueErr, f"set_num_threads: n is {2**40}, expected an integer of 32 bits", qcore.set_num_threads, 2**40)
