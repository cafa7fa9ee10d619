"""Oracle of qcore's operators in NumPy, written from the specification and not from the C++.

float32 in every step, each operation rounded once. Integers are int64. Shape letters as everywhere: M rows of
activations, K input features, N output features, g block size along K, P blocks.
"""

from dataclasses import dataclass

import numpy as np

F32 = np.float32
FLOAT_MAX = np.finfo(F32).max
NEAREST = {"method": "rtn", "scale_dtype": "float32"}
"""Options of ``qcore.quantize`` for what :func:`quantize_weight` computes by default."""


def fma(a, b, c):
    """Return a*b + c in float32, rounded once.

    The product of two float32 is exact in float64. Its sum with c is not, and rounding it again to float32 could err;
    rounded to odd instead (the inexact bit kept in the last place), the second rounding is right.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.atleast_1d(product + addend)
    # The exact error of the sum, by Knuth's two-sum.
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    np.add(bits, np.where(away, 1, -1), out=bits, where=inexact)
    return total.astype(F32).reshape(np.broadcast_shapes(product.shape, addend.shape))


def block_count(k, g):
    return -(-k // g)


def block_slices(k, g):
    return [slice(begin, min(begin + g, k)) for begin in range(0, k, g)]


def code_max(bits):
    return 2 ** (bits - 1) - 1


def _per_block(x, g):
    """Return [R, K, ...] as [R, P, elements of a block]; a short block is filled up with its last element."""
    k = x.shape[1]
    blocks = block_count(k, g)
    g = min(g, k)
    padded = np.concatenate([x, np.repeat(x[:, -1:], blocks * g - k, axis=1)], axis=1)
    split = padded.reshape(x.shape[0], blocks, g, -1)
    return split.reshape(x.shape[0], blocks, -1)


def _spread(parameters, like, g):
    """Expand [R, P] to the shape of ``like`` [R, K, ...]."""
    per_k = np.repeat(parameters, min(g, like.shape[1]), axis=1)[:, : like.shape[1]]
    return per_k.reshape(per_k.shape + (1,) * (like.ndim - 2))


def _reciprocal(scale):
    """Return 1/scale, or 0 where that is not finite: such a block has no codes."""
    inverse = F32(1) / scale
    return np.where(np.isfinite(inverse), inverse, F32(0))


def _symmetric_parameters(blocks, bits):
    scale = np.abs(blocks).max(axis=2) / F32(code_max(bits))
    inverse = _reciprocal(scale)
    return np.where(inverse == 0, F32(0), scale), inverse


def _asymmetric_parameters(lo, hi, bits):
    levels = F32(2**bits - 1)
    span = hi - lo
    scale = np.where(np.isfinite(span), span / levels, hi / levels - lo / levels)
    inverse = np.where(lo == hi, F32(0), _reciprocal(scale))
    return scale, inverse, fma(-scale, code_max(bits), hi)


def _encode(x, inverse, offset, lowest, highest):
    codes = np.rint((x - offset) * inverse)
    return np.where(inverse == 0, 0, np.clip(codes, lowest, highest)).astype(np.int64)


@dataclass
class Quantized:
    """x ~ scales * codes + offsets, blocked along axis 1."""

    codes: np.ndarray  # int64 [R, K, ...]
    scales: np.ndarray  # float32 [R, P]
    offsets: np.ndarray  # float32 [R, P]
    g: int

    def __getitem__(self, rows):
        return Quantized(self.codes[rows], self.scales[rows], self.offsets[rows], self.g)

    @property
    def sums(self):
        """Return the sum of each block's codes, int64 [R, P]."""
        slices = block_slices(self.codes.shape[1], self.g)
        within = tuple(range(1, self.codes.ndim))
        columns = [self.codes[:, block].sum(axis=within) for block in slices]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.codes), 0), np.int64)

    def dequantize(self):
        scales, offsets = (_spread(part, self.codes, self.g) for part in (self.scales, self.offsets))
        return fma(scales, self.codes, offsets)


def _empty(x, g):
    parameters = np.zeros((x.shape[0], block_count(x.shape[1], g)), F32)
    return Quantized(np.zeros(x.shape, np.int64), parameters, parameters.copy(), g)


@np.errstate(all="ignore")
def quantize_weight(w, bits, g, scheme, scale_dtype="float32"):
    """Return a float32 weight [N, K] or [Co, Ci, Kh, Kw] rounded to nearest, with parameters in ``scale_dtype``."""
    if w.size == 0:
        return _empty(w, g)
    highest = code_max(bits)
    blocks = _per_block(w, g)
    if scheme == "symmetric":
        scales, inverse = _symmetric_parameters(blocks, bits)
        offsets, lowest = np.zeros_like(scales), -highest
    else:
        lo, hi = blocks.min(axis=2), blocks.max(axis=2)
        scales, inverse, offsets = _asymmetric_parameters(lo, hi, bits)
        constant = inverse == 0
        scales, offsets, lowest = np.where(constant, F32(1), scales), np.where(constant, hi, offsets), -highest - 1
    if scale_dtype == "float16":
        scales, offsets = (part.astype(np.float16).astype(F32) for part in (scales, offsets))
        inverse = np.where((inverse == 0) | (scales == 0), F32(0), F32(1) / scales)
    codes = _encode(w, _spread(inverse, w, g), _spread(offsets, w, g), lowest, highest)
    return Quantized(codes, scales, offsets, g)


def activation_parts(activations):
    """Return codes, scales, offsets (zeros if there are none) and sums of qcore.QuantizedActivations."""
    codes, scales = np.asarray(activations.codes), np.asarray(activations.scales)
    offsets = np.zeros_like(scales) if activations.offsets is None else np.asarray(activations.offsets)
    slices = block_slices(codes.shape[1], activations.block_size)
    sums = [codes[:, block].sum(axis=1, dtype=np.int32) for block in slices]
    return codes, scales, offsets, np.stack(sums, axis=1) if sums else np.zeros(scales.shape, np.int32)


@np.errstate(all="ignore")
def quantize_activations(x, g, mode, scale=None):
    """Return float32 [M, K] as linear sees it. A block with a NaN or an infinity has scale NaN and codes 0."""
    if x.size == 0:
        return _empty(x, g)
    blocks = _per_block(x, g)
    poisoned = ~np.isfinite(blocks).all(axis=2)
    if mode == "int8_asym":
        lo, hi = blocks.min(axis=2), blocks.max(axis=2)
        scales, inverse, offsets = _asymmetric_parameters(lo, hi, 8)
        narrow = inverse == 0
        constant = lo == hi
        scales = np.where(narrow, np.where(constant, F32(1), F32(0)), scales)
        offsets = np.where(narrow, np.where(constant, hi, F32(0)), offsets)
        lowest, highest = -128, 127
    else:
        bits = 16 if mode == "int16" else 8
        scales, inverse = _symmetric_parameters(blocks, bits)
        offsets, highest = np.zeros_like(scales), code_max(bits)
        lowest = -highest
    if scale is not None:
        scales, inverse, lowest = np.full_like(scales, scale), np.full_like(scales, F32(1) / F32(scale)), -128
    scales = np.where(poisoned, F32(np.nan), scales)
    inverse, offsets = np.where(poisoned, F32(0), inverse), np.where(poisoned, F32(0), offsets)
    finite = np.where(np.isfinite(x), x, F32(0))
    codes = _encode(finite, _spread(inverse, x, g), _spread(offsets, x, g), lowest, highest)
    return Quantized(codes, scales, offsets, g)


def block_products(a, b):
    """Return each block's exact sums of products of codes, int64 [M, N]."""
    # Exact in float64, where BLAS is fast: every partial sum is far below 2^53.
    codes_a, codes_b = a.codes.astype(np.float64), b.codes.astype(np.float64)
    slices = block_slices(a.codes.shape[1], a.g)
    return [(codes_a[:, block] @ codes_b[:, block].T).astype(np.int64) for block in slices]


@np.errstate(all="ignore")
def integer_linear(a, b, products, mode, asymmetric_weight):
    """Return the float32 result of the integer modes, step by step; the order of the steps is the definition."""
    y = np.zeros((len(a.codes), len(b.codes)), F32)
    sums_a, sums_b = a.sums, b.sums
    for p, acc in enumerate(products):
        scale_a, offset_a = a.scales[:, p, None], a.offsets[:, p, None]
        scale_b, offset_b = b.scales[None, :, p], b.offsets[None, :, p]
        y = fma(acc.astype(F32), scale_a * scale_b, y)
        if asymmetric_weight:
            y = fma(scale_a * sums_a[:, p, None].astype(F32), offset_b, y)
        if mode == "int8_asym":
            valid = F32(min(a.g, a.codes.shape[1] - p * a.g))
            y = fma(offset_a, fma(scale_b, sums_b[None, :, p].astype(F32), valid * offset_b), y)
    return y


@np.errstate(all="ignore")
def float_linear(x, b):
    """Return the float32 result of the float mode: every block is summed in order, then added to the total."""
    weight = b.dequantize()
    y = np.zeros((len(x), len(weight)), F32)
    for block in block_slices(x.shape[1], b.g):
        total = np.zeros_like(y)
        for k in range(block.start, block.stop):
            total = fma(x[:, k, None], weight[None, :, k], total)
        y = y + total
    return y


def integer_linear_float64(a, b, products):
    """Return the same sum of four terms in float64, and the sum of their magnitudes."""
    y, magnitude = (np.zeros((len(a.codes), len(b.codes))) for _ in range(2))
    sums_a, sums_b = a.sums, b.sums
    for p, acc in enumerate(products):
        scale_a, offset_a = (part[:, p, None].astype(np.float64) for part in (a.scales, a.offsets))
        scale_b, offset_b = (part[None, :, p].astype(np.float64) for part in (b.scales, b.offsets))
        valid = min(a.g, a.codes.shape[1] - p * a.g)
        for term in (
            scale_a * scale_b * acc,
            scale_a * offset_b * sums_a[:, p, None],
            offset_a * scale_b * sums_b[None, :, p],
            valid * offset_a * offset_b,
        ):
            y += term
            magnitude += np.abs(term)
    return y, magnitude


def linear(x, b, mode, asymmetric_weight):
    """Return the exact bits of a float32 result without bias and activation."""
    if mode == "float":
        return float_linear(x, b)
    a = quantize_activations(x, b.g, mode)
    return integer_linear(a, b, block_products(a, b), mode, asymmetric_weight)


def linear_and_bound(x, b, mode, asymmetric_weight):
    """Return the exact bits, the result in float64 and how far a float32 result may be from it."""
    if mode == "float":
        weight = b.dequantize().astype(np.float64).T
        exact, magnitude = x.astype(np.float64) @ weight, np.abs(x).astype(np.float64) @ np.abs(weight)
        return float_linear(x, b), exact, error_bound(magnitude, x.shape[1], b.g, mode)
    a = quantize_activations(x, b.g, mode)
    products = block_products(a, b)
    exact, magnitude = integer_linear_float64(a, b, products)
    bound = error_bound(magnitude, x.shape[1], b.g, mode)
    return integer_linear(a, b, products, mode, asymmetric_weight), exact, bound


def error_bound(magnitude, k, g, mode):
    """Return the largest error of a result: 4 * P * 2^-24 * sum |terms|, more in the float mode for each product."""
    roundings = block_count(k, g) + (min(g, k) if mode == "float" else 0)
    return 4 * roundings * 2.0**-24 * magnitude
