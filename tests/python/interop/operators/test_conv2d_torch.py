"""conv2d beside torch's on dequantized weights, and tensors of torch in and out."""

import pytest

import qcore

torch = pytest.importorskip("torch")

CASES = [
    ((2, 24, 9, 8), (20, 24, 3, 3), {"padding": 1}),
    ((1, 16, 11, 10), (12, 4, 3, 2), {"stride": 2, "dilation": (2, 1), "groups": 4}),
    ((1, 21, 8, 8), (21, 1, 3, 3), {"padding": (1, 2), "groups": 21}),
    ((1, 40, 5, 6), (33, 40, 1, 1), {}),
]


def made(x_shape, w_shape, **options):
    generator = torch.Generator().manual_seed(sum(x_shape))
    x = torch.randn(x_shape, generator=generator)
    weight = torch.randn(w_shape, generator=generator)
    return x, qcore.quantize(weight, bits=8, block_size=8, **options)


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("x_shape", "w_shape", "window"), CASES, ids=lambda value: str(value))
def test_float_results_are_torchs(x_shape, w_shape, window, scheme):
    x, weight = made(x_shape, w_shape, scheme=scheme)
    plain = torch.from_numpy(weight.dequantize())
    expected = torch.conv2d(x.double(), plain.double(), **window)
    terms = torch.conv2d(x.double().abs(), plain.double().abs(), **window)
    steps = w_shape[2] * w_shape[3] * (-(-w_shape[1] // 8)) + 8  # totals, and sums within a block
    for memory in (torch.contiguous_format, torch.channels_last):
        y = qcore.conv2d(x.to(memory_format=memory), weight, compute="float", **window)
        assert y.is_contiguous(memory_format=memory)
        assert ((y.double() - expected).abs() <= 4 * steps * 2**-24 * terms).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_in_halves_out(dtype):
    x, weight = made((1, 16, 6, 6), (8, 16, 3, 3))
    x = x.to(dtype)
    y = qcore.conv2d(x, weight, padding=1)
    assert y.dtype == dtype
    assert torch.equal(y, qcore.conv2d(x.float(), weight, padding=1).to(dtype))
    out = torch.zeros(1, 8, 6, 6).to(memory_format=torch.channels_last)
    assert qcore.conv2d(x, weight, padding=1, out=out) is out
    assert torch.equal(out.to(dtype), y)


def test_gradients_are_refused():
    x, weight = made((1, 16, 6, 6), (8, 16, 3, 3))
    with pytest.raises(qcore.QcoreValueError, match="requires grad"):
        qcore.conv2d(x.requires_grad_(), weight)
    with torch.no_grad():
        assert qcore.conv2d(x, weight).shape == (1, 8, 4, 4)
