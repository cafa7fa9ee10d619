"""Wrong codes, blocks and scales of activations: whole messages, and nothing written."""

import numpy as np
import pytest

import qcore

ValueErr, TypeErr = qcore.QcoreValueError, qcore.QcoreTypeError
WEIGHT = qcore.quantize(np.ones((3, 8), np.float32), bits=8, block_size=4)


def x_ok():
    return np.ones((2, 8), np.float32)


def check(kind, message, call, *arguments, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert type(caught.value) is kind
    assert str(caught.value) == message


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 1e-45])
def test_scale_of_activations(scale):
    given = f"is {scale!r}, expected a positive number"
    core = f"is {np.float32(scale):.6g}, expected a positive finite number with a finite inverse"
    expected = given if not scale > 0 else core
    for op, argument, call in (
        ("quantize_activations", "scale", lambda: qcore.quantize_activations(x_ok(), scale=scale)),
        ("linear", "x_scale", lambda: qcore.linear(x_ok(), WEIGHT, x_scale=scale)),
    ):
        with pytest.raises(ValueErr) as caught:
            call()
        assert str(caught.value) == f"{op}: {argument} {expected}"


def test_scale_of_other_modes():
    for mode in ("int8_asym", "int16", "float"):
        with pytest.raises(ValueErr) as caught:
            qcore.linear(x_ok(), WEIGHT, compute=mode, x_scale=0.1)
        assert str(caught.value) == "linear: x_scale is given, expected none unless x becomes int8"


def test_parts_of_activations():
    codes, scales = np.zeros((2, 8), np.int8), np.ones((2, 2), np.float32)

    def refuse(kind, message, *parts, **options):
        check(
            kind, f"QuantizedActivations: {message}", qcore.QuantizedActivations, *parts, **{"block_size": 4} | options
        )

    refuse(TypeErr, "x.codes has dtype int8, expected int16", codes, scales, compute="int16")
    refuse(TypeErr, "x.codes has dtype int32, expected int8", codes.astype(np.int32), scales)
    refuse(TypeErr, "x.scales has dtype float16, expected float32", codes, scales.astype(np.float16))
    refuse(ValueErr, "x.scales has shape [2, 2], expected [2, 1]", codes, scales, block_size=None)
    refuse(ValueErr, "x.scales has shape [2], expected [2, 2]", codes, scales[0])
    refuse(ValueErr, "x.codes has shape [], expected [..., K]", codes[0, 0], scales)
    refuse(ValueErr, "x.offsets are missing, expected them for int8_asym only", codes, scales, compute="int8_asym")
    refuse(ValueErr, "x.offsets are given, expected them for int8_asym only", codes, scales, scales)
    refuse(ValueErr, "x.block_size is 0, expected 1 or more", codes, scales, block_size=0)
    refuse(ValueErr, "compute is 'float', expected one of 'int8', 'int8_asym', 'int16'", codes, scales, compute="float")


def test_linear_of_codes():
    weight = qcore.quantize(np.ones((3, 64), np.float32), block_size=16)
    x = qcore.quantize_activations(np.ones((2, 64), np.float32), 16)

    def refuse(kind, message, *arguments, **options):
        check(kind, f"linear: {message}", qcore.linear, *arguments, **options)

    for size in (8, 24):
        given = qcore.quantize_activations(np.ones((2, 64), np.float32), size)
        refuse(ValueErr, f"x has blocks of {size}, expected K = 64, or a multiple of the weight's 16", given, weight)
    one_block = qcore.quantize(np.ones((3, 64), np.float32), block_size=64)
    refuse(ValueErr, "x has blocks of 16, expected K = 64", x, one_block)
    refuse(
        ValueErr, "compute is 'int16', expected None or 'int8': x is quantized so already", x, weight, compute="int16"
    )
    refuse(ValueErr, "x_scale is 0.1, expected None: x is quantized already", x, weight, x_scale=0.1)
    short = qcore.quantize_activations(np.ones((2, 48), np.float32), 16)
    refuse(
        ValueErr,
        "x has shape [2, 48], expected its last dimension to be K = 64 of the weight [3, 64]",
        short,
        weight,
    )
    out = np.full((2, 3), 7, np.float32)
    refuse(
        ValueErr,
        "out has shape [2, 3], expected [1, 3]",
        qcore.quantize_activations(np.ones((1, 64), np.float32), 16),
        weight,
        out=out,
    )
    assert (out == 7).all()
    refuse(
        ValueErr,
        "out and out_dtype are both given, expected at most one of them",
        x,
        weight,
        out=out,
        out_dtype="float16",
    )


def test_windows_have_no_rows():
    image, kernel = np.ones((1, 4, 5, 5), np.float32), qcore.quantize(np.ones((3, 4, 3, 3), np.float32), block_size=4)
    with pytest.raises(
        ValueErr, match="conv2d: compute is 'int8_token', expected one of 'float', 'int8', 'int8_asym', 'int16'"
    ):
        qcore.conv2d(image, kernel, compute="int8_token")
