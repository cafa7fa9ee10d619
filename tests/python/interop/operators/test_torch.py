"""torch tensors in and out, without a copy."""

import ml_dtypes
import numpy as np
import oracle
import pytest
import torch

import qcore

MODES = ("float", "int8", "int8_asym", "int16")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def weight_of(n=20, k=70, seed=0):
    w = np.random.default_rng(seed).standard_normal((n, k), dtype=np.float32)
    return qcore.quantize(w, bits=8, block_size=32, scheme="asymmetric")


WEIGHT = weight_of()


def tensor(*shape, dtype=torch.float32, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)).to(dtype)


def exact_of(x, bias=None, **options):
    """Return the same result from NumPy, in float32."""
    values = x.detach().float().contiguous().numpy()
    if x.dtype == torch.bfloat16:  # which has a kernel of its own
        values = values.astype(ml_dtypes.bfloat16)
    bias = None if bias is None else bias.detach().float().numpy()
    return torch.from_numpy(qcore.linear(values, WEIGHT, bias, out_dtype="float32", **options))


def expected_of(x, bias=None, **options):
    """Return the same result, rounded to x's dtype by torch."""
    return exact_of(x, bias, **options).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_dtypes(mode, dtype):
    x, bias = tensor(7, 70, dtype=dtype), tensor(20, dtype=dtype, seed=2)
    y = qcore.linear(x, WEIGHT, bias, compute=mode)
    assert type(y) is torch.Tensor
    assert (y.dtype, y.device, y.shape) == (dtype, x.device, (7, 20))
    assert torch.equal(y, expected_of(x, bias, compute=mode))
    for out_dtype in DTYPES:
        y = qcore.linear(x, WEIGHT, bias, compute=mode, out_dtype=out_dtype)
        assert y.dtype == out_dtype
        assert torch.equal(y, exact_of(x, bias, compute=mode).to(out_dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_grouped_linear(mode, dtype):
    experts = [weight_of(seed=seed) for seed in range(3)]
    x, bias = tensor(7, 70, dtype=dtype), tensor(3, 20, dtype=dtype, seed=2)
    for row_counts in (torch.tensor([4, 0, 3]), torch.tensor([4, 0, 3], dtype=torch.int32)):
        y = qcore.grouped_linear(x, qcore.concatenate(experts), row_counts, bias, compute=mode)
        assert type(y) is torch.Tensor
        assert (y.dtype, y.device, y.shape) == (dtype, x.device, (7, 20))
        assert torch.equal(y[:4], qcore.linear(x[:4], experts[0], bias[0], compute=mode))
        assert torch.equal(y[4:], qcore.linear(x[4:], experts[2], bias[2], compute=mode))
    with pytest.raises(ValueError, match="grouped_linear: x requires grad"):
        qcore.grouped_linear(x.requires_grad_(), qcore.concatenate(experts), row_counts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantize_takes_tensors(dtype):
    w = tensor(9, 50, dtype=dtype)
    expected = qcore.quantize(w.float().numpy(), block_size=16)
    assert qcore.quantize(w, block_size=16) == expected
    assert qcore.quantize(w.t().contiguous().t(), block_size=16) == expected
    assert (
        qcore.QuantizedTensor.from_parts(
            torch.from_numpy(expected.codes()), torch.from_numpy(expected.scales()), bits=4, block_size=16
        )
        == expected
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES[1:])
def test_quantize_activations(mode, dtype):
    x = tensor(3, 50, dtype=dtype)
    activations = qcore.quantize_activations(x, 16, mode)
    assert activations.codes.dtype == (torch.int16 if mode == "int16" else torch.int8)
    assert activations.scales.dtype == torch.float32
    assert (activations.offsets is None) == (mode != "int8_asym")
    expected = oracle.quantize_activations(x.float().numpy(), 16, mode)
    parts = oracle.activation_parts(activations)
    for part, value in zip(parts, (expected.codes, expected.scales, expected.offsets, expected.sums), strict=True):
        np.testing.assert_array_equal(part, value)
    weight = qcore.quantize(tensor(9, 50).numpy(), bits=8, block_size=16)
    assert torch.equal(qcore.linear(activations, weight), qcore.linear(x.float(), weight, compute=mode))
    assert qcore.linear(activations, weight, out_dtype=dtype).dtype == dtype


LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every second column": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "one row for all": lambda x: x[:1].expand(12, 70),
    "3-D, leading axes swapped": lambda x: x.view(3, 4, 70).transpose(0, 1),
    "4-D": lambda x: x.view(2, 3, 2, 70).permute(2, 0, 1, 3),
    "vector": lambda x: x[5],
    "storage offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(12, 70),
    "no rows": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype, layout):
    x = LAYOUTS[layout](tensor(12, 70, dtype=dtype))
    y = qcore.linear(x, WEIGHT)
    assert y.shape == (*x.shape[:-1], 20)
    assert torch.equal(y, expected_of(x))


# Memory


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_tensors_of_torch_and_aligned(dtype):
    for m in (1, 3, 17):
        y = qcore.linear(tensor(m, 70, dtype=dtype), WEIGHT)
        assert y.data_ptr() % 64 == 0
        assert y.is_contiguous()
        y.resize_(0)  # torch owns the storage


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_is_written_in_place(dtype):
    x = tensor(4, 70, dtype=dtype)
    memory = torch.full((6, 43), -1.0, dtype=dtype)
    out = memory[1:5, 1:41:2]
    assert qcore.linear(x, WEIGHT, out=out) is out
    assert torch.equal(memory[1:5, 1:41:2], expected_of(x))
    assert (memory == -1).sum() == memory.numel() - out.numel()


def test_numpy_writes_into_torch_and_torch_into_numpy():
    x = tensor(4, 70)
    expected = expected_of(x)
    owner = torch.zeros(4, 20)
    view = owner.numpy()
    assert view.ctypes.data == owner.data_ptr()
    assert qcore.linear(x.numpy(), WEIGHT, out=view) is view
    assert torch.equal(owner, expected)
    array = np.zeros((4, 20), np.float32)
    assert qcore.linear(x, WEIGHT, out=array) is array
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_the_core_sees_is_torchs_memory(monkeypatch, dtype):
    """The pointers that reach the core are those of the tensors, not of copies."""
    from qcore import _core

    seen = []
    original = _core.linear

    def spy(x, weight, bias, out, *rest):
        seen.append([x.data_ptr(), bias.data_ptr(), out.data_ptr()])
        return original(x, weight, bias, out, *rest)

    monkeypatch.setattr(_core, "linear", spy)
    x, bias = tensor(4, 70, dtype=dtype), tensor(20, dtype=dtype)
    y = qcore.linear(x, WEIGHT, bias)
    assert seen == [[x.data_ptr(), bias.data_ptr(), y.data_ptr()]]


def test_mixed_libraries():
    x, bias = tensor(4, 70), tensor(20, seed=3)
    expected = expected_of(x, bias)
    y = qcore.linear(x, WEIGHT, bias.numpy())
    assert type(y) is torch.Tensor
    assert torch.equal(y, expected)
    y = qcore.linear(x.numpy(), WEIGHT, bias.bfloat16())
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, expected_of(x, bias.bfloat16()))


# Autograd, lazy views, subclasses


def test_requires_grad():
    x, bias = tensor(4, 70).requires_grad_(), torch.nn.Parameter(tensor(20, seed=4))
    text = (
        "linear: {0} requires grad, and this operator records none: pass {0}.detach(), or call it under torch.no_grad()"
    )
    out = torch.full((4, 20), 7.0)
    for name, arguments in (("x", (x, WEIGHT)), ("bias", (x.detach(), WEIGHT, bias))):
        with pytest.raises(qcore.QcoreValueError) as caught:
            qcore.linear(*arguments, out=out)
        assert str(caught.value) == text.format(name)
    with pytest.raises(qcore.QcoreValueError, match="linear: out requires grad"):
        qcore.linear(x.detach(), WEIGHT, out=torch.zeros(4, 20, requires_grad=True))
    with pytest.raises(qcore.QcoreValueError, match="quantize: weight requires grad"):
        qcore.quantize(x)
    assert (out == 7).all()

    expected = expected_of(x, bias)
    with torch.no_grad():
        y = qcore.linear(x, WEIGHT, bias)
        assert qcore.quantize(x) == qcore.quantize(x.detach())
    assert not y.requires_grad
    assert torch.equal(y, expected)
    with torch.inference_mode():
        y = qcore.linear(x, WEIGHT, bias)
        assert y.is_inference()
        assert torch.equal(y, expected)
        assert torch.equal(qcore.linear(torch.ones(2, 70), WEIGHT), qcore.linear(torch.ones(2, 70), WEIGHT))


def test_parameters_are_tensors():
    layer = torch.nn.Linear(70, 20)
    weight = qcore.quantize(layer.weight.detach(), bits=8, block_size=32)
    x = tensor(5, 70)
    with torch.no_grad():
        y = qcore.linear(x, weight, layer.bias, compute="float")
        assert type(y) is torch.Tensor
        torch.testing.assert_close(y, layer(x), rtol=0, atol=0.05)


def test_subclass():
    class Tagged(torch.Tensor):
        pass

    x = tensor(5, 70)
    assert torch.equal(qcore.linear(x.as_subclass(Tagged), WEIGHT), expected_of(x))


def test_lazily_negated_view():
    values = torch.complex(tensor(4, 70, seed=5), tensor(4, 70, seed=6))
    x = values.conj().imag
    assert x.is_neg()
    assert torch.equal(qcore.linear(x, WEIGHT), expected_of(-values.imag))
    bias = torch.complex(tensor(20), tensor(20)).conj().imag
    assert torch.equal(qcore.linear(tensor(4, 70), WEIGHT, bias), expected_of(tensor(4, 70), bias.resolve_neg()))
    out = torch.full((4, 20), 1j).conj().imag
    with pytest.raises(qcore.QcoreValueError) as caught:
        qcore.linear(x, WEIGHT, out=out)
    assert str(caught.value) == "linear: out is a lazily negated or conjugated view, expected plain memory"
    assert (out == -1).all()


def refusal(x, **options):
    with pytest.raises(qcore.QcoreTypeError) as caught:
        qcore.linear(x, WEIGHT, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.float64, torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn], ids=str
)
def test_other_dtypes(dtype):
    # Other operators take int8 and int64: these have our names.
    name = str(dtype).removeprefix("torch.") if dtype in (torch.int8, torch.int64) else str(dtype)
    assert refusal(torch.zeros(2, 70).to(dtype)) == f"linear: x has dtype {name}, expected float32, float16 or bfloat16"


def test_conjugated_view():
    x = torch.zeros(2, 70, dtype=torch.complex64).conj()
    assert x.is_conj()
    assert refusal(x) == "linear: x has dtype torch.complex64, expected float32, float16 or bfloat16"


def test_tensors_without_memory():
    def make(x):
        return x.to_sparse()

    start = (
        "linear: x is a torch.Tensor of dtype torch.float32 that does not export its memory, "
        "expected an array that does: "
    )
    message = refusal(make(torch.ones(2, 70)))
    assert message.startswith(start)
    assert len(message) > len(start)
    assert "\n" not in message
    message = refusal(torch.ones(2, 70), bias=make(torch.ones(20)))
    assert message.startswith("linear: bias is a torch.Tensor")
    out = make(torch.ones(2, 20))
    assert refusal(torch.ones(2, 70), out=out).startswith("linear: out is a torch.Tensor")


def test_meta_tensors():
    text = "is on the meta device, which has no values, expected the CPU or a CUDA device: load the values first"
    with pytest.raises(qcore.QcoreValueError) as caught:
        qcore.linear(torch.ones(2, 70, device="meta"), WEIGHT)
    assert str(caught.value) == f"linear: x {text}"
    with pytest.raises(qcore.QcoreValueError) as caught:
        qcore.linear(torch.ones(2, 70), WEIGHT, torch.ones(20, device="meta"))
    assert str(caught.value) == f"linear: bias {text}"


def test_shapes_and_aliasing():
    x = tensor(4, 70)
    with pytest.raises(
        qcore.QcoreValueError, match=r"linear: x has shape \[4, 69\], expected its last dimension to be K = 70"
    ):
        qcore.linear(x[:, 1:], WEIGHT)
    with pytest.raises(
        qcore.QcoreValueError, match=r"out with shape \[4, 20\] and strides \[0, 1\] has elements that share"
    ):
        qcore.linear(x, WEIGHT, out=torch.zeros(1, 20).expand(4, 20))
    memory = torch.zeros(400)
    with pytest.raises(qcore.QcoreValueError, match="out overlaps x in memory"):
        qcore.linear(memory[:280].view(4, 70), WEIGHT, out=memory[200:280].view(4, 20))
    assert not memory.any()


def test_threads_of_torch_and_qcore_side_by_side():
    x = tensor(64, 700, seed=7)
    weight = weight_of(300, 700, seed=8)
    dense = torch.from_numpy(weight.dequantize())
    exact = x @ dense.t()
    for _ in range(5):
        torch.testing.assert_close(qcore.linear(x, weight, compute="float"), exact, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(x @ dense.t(), exact)
