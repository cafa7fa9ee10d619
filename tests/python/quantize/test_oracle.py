"""The oracle's own foundations, against exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import oracle
import pytest


def round_to_float32(value):
    """Return a Fraction, rounded half to even to float32."""
    if value == 0:
        return np.float32(0)
    exponent = math.floor(math.log2(abs(value.numerator)) - math.log2(value.denominator))
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    unit = Fraction(2) ** max(exponent - 23, -149)
    rounded = round(value / unit) * unit  # Fraction rounds half to even
    return np.float32(np.inf if rounded > 0 else -np.inf) if abs(rounded) >= Fraction(2) ** 128 else np.float32(rounded)


def operands(kind, rng, count):
    if kind == "normal":
        return (rng.standard_normal(count).astype(np.float32) for _ in range(3))
    if kind == "any bits":
        patterns = (rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32) for _ in range(3))
        return (np.where(np.isfinite(values), values, np.float32(1)) for values in patterns)
    if kind == "canceling":
        a, b = (rng.standard_normal(count).astype(np.float32) for _ in range(2))
        return a, b, -(a * b)
    if kind == "subnormal":
        scale = np.float32(2) ** rng.integers(-80, -60, (2, count)).astype(np.float32)
        a, b = (rng.standard_normal(count).astype(np.float32) * s for s in scale)
        return a, b, (rng.integers(-9, 9, count) * 2.0**-149).astype(np.float32)
    # (1 + p)(1 - p + p^2) = 1 + p^3: c + a*b lies 2^-57 beside a tie of float32, and float64 drops those 2^-57.
    p = rng.choice([-1, 1], count) * 2.0**-11
    a, b = 2.0**-12 * (1 + p), 2.0**-12 * (1 - p + p * p)
    c = 1 + rng.integers(0, 2**23 - 1, count) * 2.0**-23
    return a.astype(np.float32), (rng.choice([-1, 1], count) * b).astype(np.float32), c.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "any bits", "canceling", "subnormal", "tie"])
def test_fma_rounds_once(kind):
    a, b, c = operands(kind, np.random.default_rng(0), 2000)
    with np.errstate(over="ignore"):
        actual = oracle.fma(a, b, c)
    exact = [Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)) for p, q, r in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(actual, np.array([round_to_float32(value) for value in exact], np.float32))


def test_rounding_twice_would_be_wrong():
    """So that the ties above mean something."""
    a, b, c = operands("tie", np.random.default_rng(0), 2000)
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert 0.2 < np.mean(twice != oracle.fma(a, b, c)) < 0.8


def test_fma_keeps_what_is_not_finite():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    with np.errstate(all="ignore"):
        got = oracle.fma([inf, inf, -inf, nan, 3e38, 1], [1, 0, 2, 1, 2, 1], [1, 1, inf, 0, 0, -inf])
    np.testing.assert_array_equal(got, np.float32([inf, nan, nan, nan, inf, -inf]))


def test_block_products_are_exact():
    rng = np.random.default_rng(1)
    codes_a, codes_b = rng.integers(-32767, 32768, (3, 301)), rng.integers(-128, 128, (4, 301))
    parameters = np.ones((4, 3), np.float32)
    a = oracle.Quantized(codes_a, parameters[:3], parameters[:3], 128)
    b = oracle.Quantized(codes_b, parameters, parameters, 128)
    total = sum(oracle.block_products(a, b))
    assert total.tolist() == [
        [sum(int(p) * int(q) for p, q in zip(r, s, strict=True)) for s in codes_b] for r in codes_a
    ]
