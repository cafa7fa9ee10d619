"""The decoder's operators that end with codes: the bits of the two operators that they stand for."""

import numpy as np
import pytest

import qcore
from qcore import decoder

CASES = [((1, 64), 32), ((2, 3, 100), 7), ((5, 4096), 128), ((300, 512), None), ((0, 16), 8), ((2, 0), 4)]
MODES = ("int8", "int8_asym", "int16")


def values(shape, dtype, seed=0):
    x = np.random.default_rng([*shape, seed]).standard_normal(shape).astype(dtype)
    if x.size > 100:
        x.reshape(-1)[70] = np.nan
    return x


def assert_equal(actual, expected):
    np.testing.assert_array_equal(actual.codes, expected.codes)
    np.testing.assert_array_equal(actual.scales, expected.scales)
    assert (actual.offsets is None) == (expected.offsets is None)
    if actual.offsets is not None:
        np.testing.assert_array_equal(actual.offsets, expected.offsets)
    assert (actual.compute, actual.block_size) == (expected.compute, expected.block_size)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rms_norm_quantize(dtype, mode):
    for shape, block in CASES:
        x, weight = values(shape, dtype), values(shape[-1:], "float32", 1)
        for scale in (None, 0.02) if mode == "int8" else (None,):
            expected = qcore.quantize_activations(decoder.rms_norm(x, weight), block, mode, scale=scale)
            assert_equal(decoder.rms_norm_quantize(x, weight, block_size=block, compute=mode, scale=scale), expected)
        options = {"eps": 1e-3, "offset": 1.0, "round_normalized": True}
        sums, old = values(shape, dtype, 2), values(shape, dtype, 2)
        expected = qcore.quantize_activations(decoder.rms_norm(x, weight, residual=old, **options), block, mode)
        made = decoder.rms_norm_quantize(x, weight, block_size=block, compute=mode, residual=sums, **options)
        assert_equal(made, expected)
        np.testing.assert_array_equal(sums, old)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_gated_activation_quantize(activation, mode):
    for shape, block in CASES:
        x = values((*shape[:-1], 2 * shape[-1]), "float16")
        for scale in (None, 0.02) if mode == "int8" else (None,):
            expected = qcore.quantize_activations(decoder.gated_activation(x, activation), block, mode, scale=scale)
            made = decoder.gated_activation_quantize(x, activation, block_size=block, compute=mode, scale=scale)
            assert_equal(made, expected)


def test_strided_rows_and_products():
    x = values((4, 6, 64), "float32").transpose(1, 0, 2)[:, ::2]
    weights = [qcore.quantize(np.nan_to_num(values((n, 64), "float32", n)), block_size=32) for n in (20, 7)]
    codes = decoder.rms_norm_quantize(x, block_size=32)
    assert codes.shape == (6, 2, 64)
    for weight in weights:  # quantized once for all of them
        np.testing.assert_array_equal(qcore.linear(codes, weight), qcore.linear(decoder.rms_norm(x), weight))


def test_torch():
    torch = pytest.importorskip("torch", reason="codes of torch's tensors need torch")
    x = torch.from_numpy(values((3, 64), "float32")).bfloat16()
    made = decoder.rms_norm_quantize(x, block_size=32)
    expected = qcore.quantize_activations(decoder.rms_norm(x), 32)
    assert made.codes.dtype == torch.int8
    assert torch.equal(made.codes, expected.codes)
    np.testing.assert_array_equal(made.scales.numpy(), expected.scales.numpy())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: decoder.rms_norm_quantize(x, eps=-1),
            "rms_norm_quantize: eps is -1, expected a number from 0 to 1e30",
        ),
        (
            lambda x: decoder.rms_norm_quantize(x, np.ones(5, np.float32)),
            "rms_norm_quantize: weight has shape [5], expected [8]",
        ),
        (
            lambda x: decoder.rms_norm_quantize(x, block_size=0),
            "rms_norm_quantize: y.block_size is 0, expected 1 or more",
        ),
        (
            lambda x: decoder.rms_norm_quantize(x, compute="float"),
            "rms_norm_quantize: compute is 'float', expected one of 'int8', 'int8_asym', 'int16'",
        ),
        (
            lambda x: decoder.rms_norm_quantize(x, compute="int16", scale=0.1),
            "rms_norm_quantize: scale is given, expected none unless x becomes int8",
        ),
        (
            lambda x: decoder.rms_norm_quantize(x, residual=np.ones((2, 4), np.float32)),
            "rms_norm_quantize: residual has shape [2, 4], expected [2, 8]",
        ),
        (
            lambda x: decoder.gated_activation_quantize(x[:, :7]),
            "gated_activation_quantize: x has shape [2, 7], expected an even last dimension: the gate, then what it "
            "multiplies",
        ),
        (
            lambda x: decoder.gated_activation_quantize(x, "tanh"),
            "gated_activation_quantize: activation is 'tanh', expected one of 'silu', 'gelu', 'gelu_tanh', 'relu'",
        ),
        (
            lambda x: decoder.gated_activation_quantize(x, scale=-1),
            "gated_activation_quantize: scale is -1, expected a positive number",
        ),
    ],
)
def test_errors(call, message):
    x = np.ones((2, 8), np.float32)
    with pytest.raises(qcore.QcoreValueError) as caught:
        call(x)
    assert str(caught.value) == message
