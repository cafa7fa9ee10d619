"""Shared by the tests of look-up tables: an oracle in NumPy, tables of every kind, and the kernels of this machine.

The oracle is written from the definition in docs/luts.md in float64, each operation rounded to float32 by hand; float64
holds every product of two float32 numbers exactly, so that one rounding of ``a * b + c`` is an fma wherever the sum is
exact too, and `fma` below settles the rest with integers.
"""

from fractions import Fraction

import ml_dtypes
import numpy as np

import qcore
from qcore.lut import Table

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
KERNELS = [row.name for row in qcore.kernels("lut") if row.device == "cpu" and row.available]
LIMIT = np.float32(65504)

INNER = {
    "none": (np.tanh, -4.0, 4.0),
    "exp": (np.exp2, 0.0, 1.0),
    "log": (np.log, 0.70710677, 1.4142137),
    "reciprocal": (lambda x: 1 / x, 1.0, 2.0),
    "sqrt": (np.sqrt, 1.0, 4.0),
    "rsqrt": (lambda x: x**-0.5, 1.0, 4.0),
    "periodic": (np.sin, -np.pi, np.pi),
}
"""Function and domain of the table of each range reduction."""


def knots(cuts, segments):
    """Return the positions of the entries of a table, float64."""
    cuts = np.asarray(cuts, np.float64)
    inner = [cuts[i] + (cuts[i + 1] - cuts[i]) * np.arange(segments) / segments for i in range(1, len(cuts) - 2)]
    return np.concatenate([cuts[:1], *inner, cuts[-2:]])


def sampled(reduction="none", *, intervals=10, segments=32, dtype=np.float16, seed=0):
    """Return a table of the function that belongs to a range reduction, on uneven cuts."""
    function, low, high = INNER[reduction]
    steps = np.random.default_rng(seed).uniform(0.5, 1.5, intervals)
    cuts = (low + (high - low) * np.concatenate([[0], np.cumsum(steps) / steps.sum()])).astype(np.float32)
    cuts[0], cuts[-1] = low, high
    return Table.from_parts(cuts, function(knots(cuts, segments)).astype(dtype), range_reduction=reduction)


SIZES = [(2, 1), (3, 1), (3, 7), (11, 16), (11, 20), (12, 8), (5, 64), (40, 50)]
"""(intervals, segments) beside the default of (10, 32): in registers and not, powers of two and not."""


def all_tables():
    """One of every kind: (name, Table)."""
    for reduction in INNER:
        for dtype in (np.float16, np.float32):
            yield f"{reduction} {np.dtype(dtype).name}", sampled(reduction, dtype=dtype)
    for intervals, segments in SIZES:
        yield f"{intervals} intervals of {segments}", sampled(intervals=intervals, segments=segments, seed=intervals)
    for name in qcore.lut.names():
        yield f"builtin {name}", qcore.lut.table(name)
        if qcore.lut.table(name).range_reduction != "none":
            yield f"builtin {name}, plain", qcore.lut.table(name, range_reduction=False)


def inputs(dtype):
    """Every number of 16 bits; for float32 their images and as many random bit patterns."""
    every = np.arange(1 << 16, dtype=np.uint16)
    if np.dtype(dtype).itemsize == 2:
        return every.view(dtype)
    images = [every.view(np.float16).astype(np.float32), every.view(ml_dtypes.bfloat16).astype(np.float32)]
    rng = np.random.default_rng(1)
    images.append(rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32))
    images.append(rng.normal(0, 3, 1 << 14).astype(np.float32))
    return np.concatenate(images)


def run(kernel, table, x, out=None):
    """Look up with one kernel and check that it was this one that ran."""
    with qcore.force_kernel("lut", kernel):
        y = table(x, out)
    if y.size:
        assert qcore.last_kernel("lut") == kernel
    return y


# -- the oracle -------------------------------------------------------------------------------------------------------


def fma(a, b, c):
    """Return ``a * b + c`` of float32 arrays, rounded once."""
    a, b, c = (np.asarray(value, np.float32).astype(np.float64) for value in (a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        total = product + c
        # The rounding error of the float64 sum matters only halfway between two float32 numbers.
        virtual = total - product
        lost = (product - (total - virtual)) + (c - virtual)
        rounded = total.astype(np.float32)
        halfway = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
        tiny = (np.abs(total) < 2.0**-120) & (total != 0)
        doubtful = np.isfinite(total) & (lost != 0) & (halfway | tiny)
    for i in np.flatnonzero(doubtful.ravel()):
        rounded.ravel()[i] = _nearest(Fraction(a.flat[i]) * Fraction(b.flat[i]) + Fraction(c.flat[i]))
    return rounded


def _nearest(exact):
    """Return the float32 nearest to a fraction, half to even."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.uint32)) & 1))


class Oracle:
    """A table's definition; float32 in, float32 out."""

    def __init__(self, table):
        self.cuts, self.values = table.cuts, table.values.astype(np.float32)
        self.reduction = table.range_reduction
        inner = len(self.cuts) - 3
        lengths = np.array([1] + [table.segments] * inner + [1], np.float32)
        self.lengths = np.append(lengths, np.float32(0))
        self.scales = np.append(lengths / np.diff(self.cuts), np.float32(0))
        self.firsts = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
        self.deltas = np.append(np.diff(self.values), np.float32(0))

    def plain(self, x):
        x = np.where(x > self.cuts[0], x, self.cuts[0])
        x = np.where(x < self.cuts[-1], x, self.cuts[-1]).astype(np.float32)
        i = np.searchsorted(self.cuts[1:], x, side="right")
        p = np.minimum((x - self.cuts[i]) * self.scales[i], self.lengths[i])
        j = np.floor(p)
        q = self.firsts[i] + j.astype(int)
        return fma(p - j, self.deltas[q], self.values[q])

    def __call__(self, x):
        x = np.asarray(x).astype(np.float32)
        with np.errstate(all="ignore"):
            y = getattr(self, f"_{self.reduction}")(x)
        y = np.clip(y, -LIMIT, LIMIT)
        return np.where(np.isnan(x) | np.isnan(y), np.float32(np.nan), y).astype(np.float32)

    def _none(self, x):
        return self.plain(x)

    def _exp(self, x):
        z = np.clip(np.nan_to_num(x * np.float32(1 / np.log(2)), nan=0.0, posinf=200.0, neginf=-200.0), -127, 127)
        z = z.astype(np.float32)
        n = np.floor(z)
        scale = np.where(n < -126, 0.0, np.exp2(np.maximum(n, -126).astype(np.float64))).astype(np.float32)
        return self.plain(z - n) * scale

    def _split(self, x, even):
        """Mantissa and exponent of |x|, exponents even on request; zeros and what is not finite give 1 and 0."""
        mantissa, exponent = np.frexp(np.where(np.isfinite(x) & (x != 0), np.abs(x), np.float32(1)).astype(np.float64))
        mantissa, exponent = mantissa * 2, exponent - 1
        if even:
            odd = exponent % 2 == 1
            mantissa, exponent = np.where(odd, mantissa * 2, mantissa), exponent - odd
        return mantissa.astype(np.float32), exponent

    def _reciprocal(self, x):
        m, e = self._split(x, even=False)
        y = self.plain(m) * np.where(e > 126, 0.0, np.exp2(np.minimum(-e, 120).astype(np.float64))).astype(np.float32)
        y = np.where(x == 0, LIMIT, np.where(np.isinf(x), np.float32(0), y))
        return np.copysign(y, x)

    def _sqrt(self, x):
        m, e = self._split(x, even=True)
        y = self.plain(m) * np.exp2((e // 2).astype(np.float64)).astype(np.float32)
        y = np.where(np.isinf(x), LIMIT, np.where(x == 0, np.float32(0), y))
        return np.where(x < 0, np.float32(np.nan), np.copysign(y, x))

    def _rsqrt(self, x):
        m, e = self._split(x, even=True)
        y = self.plain(m) * np.exp2((-e // 2).astype(np.float64)).astype(np.float32)
        y = np.where(np.isinf(x), np.float32(0), np.where(x == 0, LIMIT, y))
        return np.where(x < 0, np.float32(np.nan), np.copysign(y, x))

    def _log(self, x):
        m, e = self._split(x, even=False)
        high = m >= np.uint32(0x3FB504F3).view(np.float32)  # from sqrt(2), rounded down
        m, e = np.where(high, m / 2, m).astype(np.float32), e + high
        y = fma(e.astype(np.float32), np.full_like(x, np.log(2)), self.plain(m))
        y = np.where(np.isinf(x), LIMIT, np.where(x == 0, -LIMIT, y))
        return np.where(x < 0, np.float32(np.nan), y)

    def _periodic(self, x):
        turns = np.rint(np.where(np.isfinite(x), x, 0).astype(np.float32) * np.float32(1 / (2 * np.pi)))
        rest = np.where(np.isfinite(x), x, 0).astype(np.float32)
        left = Fraction(628318530717958647692528676655900576839, 10**38)
        for _ in range(3):
            part = np.float32(float(left))
            left -= Fraction(float(part))
            rest = fma(-turns, np.full_like(x, part), rest)
        return np.where(np.isinf(x), np.float32(np.nan), self.plain(rest))
