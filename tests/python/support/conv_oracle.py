"""conv2d in NumPy, written from the specification and not from the C++: tap after tap, block after block."""

import numpy as np
import oracle
from oracle import F32, Quantized, fma


def pairs(value):
    return (value, value) if np.isscalar(value) else tuple(value)


def sides(padding):
    """(top, left, bottom, right)."""
    values = pairs(padding)
    return values if len(values) == 4 else (*values, *values)


def output_size(x_shape, kernel, stride, padding, dilation):
    top, left, bottom, right = sides(padding)
    extents = (x_shape[2] + top + bottom, x_shape[3] + left + right)
    return tuple(
        (extent - d * (k - 1) - 1) // s + 1
        for extent, k, s, d in zip(extents, kernel, pairs(stride), pairs(dilation), strict=True)
    )


def windows(x, kernel, stride, padding, dilation):
    """For each tap (pixels [N*Ho*Wo, C] with zeros in the padding, which of them are inside the image)."""
    top, left, bottom, right = sides(padding)
    borders = ((0, 0), (top, bottom), (left, right))
    padded = np.pad(x.transpose(0, 2, 3, 1), (*borders, (0, 0)))
    inside = np.pad(np.ones((len(x), *x.shape[2:]), bool), borders)
    ho, wo = output_size(x.shape, kernel, stride, padding, dilation)
    (sh, sw), (dh, dw) = pairs(stride), pairs(dilation)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * dh, i * dh + (ho - 1) * sh + 1, sh)
            columns = slice(j * dw, j * dw + (wo - 1) * sw + 1, sw)
            yield padded[:, rows, columns].reshape(-1, x.shape[1]), inside[:, rows, columns].reshape(-1)


def tap_of(weight, i, j):
    """One tap of a Quantized [Co, Ci, Kh, Kw] as a matrix [Co, Ci] with the parameters of all of them."""
    return Quantized(weight.codes[:, :, i, j], weight.scales, weight.offsets, weight.g)


@np.errstate(all="ignore")
def add_integer_product(y, a, b, mode, asymmetric_weight):
    sums_a, sums_b = a.sums, b.sums
    for p, acc in enumerate(oracle.block_products(a, b)):
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
def add_float_product(y, x, b):
    weight = b.dequantize()
    for block in oracle.block_slices(x.shape[1], b.g):
        total = np.zeros_like(y)
        for k in range(block.start, block.stop):
            total = fma(x[:, k, None], weight[None, :, k], total)
        y = y + total
    return y


def conv2d(x, weight, mode, asymmetric_weight, stride=1, padding=0, dilation=1, groups=1):
    """Return the exact bits of a float32 result without bias and activation; x float32 [N, Ci, H, W]."""
    co, per_group, *kernel = weight.codes.shape
    ho, wo = output_size(x.shape, kernel, stride, padding, dilation)
    y = np.zeros((len(x) * ho * wo, co), F32)
    outputs = co // groups
    taps = [(i, j) for i in range(kernel[0]) for j in range(kernel[1])]
    for (i, j), (pixels, inside) in zip(taps, windows(x, kernel, stride, padding, dilation), strict=True):
        for group in range(groups):
            columns = slice(group * outputs, (group + 1) * outputs)
            b = tap_of(weight[columns], i, j)
            part = pixels[:, group * per_group : (group + 1) * per_group]
            if mode == "float":
                total = add_float_product(y[:, columns], part, b)
            else:
                a = oracle.quantize_activations(part, b.g, mode)
                total = add_integer_product(y[:, columns], a, b, mode, asymmetric_weight)
            y[:, columns] = np.where(inside[:, None], total, y[:, columns])
    return y.reshape(len(x), ho, wo, co).transpose(0, 3, 1, 2)
