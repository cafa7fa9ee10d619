"""GPTQ as its paper has it: one column at a time in float64, with the inverse of the Hessian and without batches.

Frantar et al., 2022, algorithm 1. The scales of a block come from ``choose``, a function of the block's current columns
and of what an error of each column counts.
"""

import numpy as np
import oracle

F32 = np.float32


def factor(x, damping, order=None):
    """Return U in float64, upper triangular, with U^T U the inverse of the damped x^T x in this order of columns."""
    hessian = x.astype(np.float64).T @ x.astype(np.float64)
    dead = np.diag(hessian) == 0
    mean = np.diag(hessian).mean() or 1.0
    hessian[dead, dead] = mean
    hessian += damping * mean * np.eye(len(hessian))
    if order is not None:
        hessian = hessian[order][:, order]
    return np.linalg.cholesky(np.linalg.inv(hessian)).T


def quantize(w, x, g, bits, choose, damping=0.01, act_order=False):
    """Return codes, scales and offsets."""
    n, k = w.shape
    squares = np.square(x.astype(np.float64)).sum(axis=0).astype(F32)
    order = np.argsort(-squares, kind="stable") if act_order else np.arange(k)
    upper = factor(x, damping, order)
    counts = np.empty(k)
    counts[order] = 1 / np.diag(upper) ** 2
    counts = np.maximum(counts, 1e-4 * counts.mean())
    w = w.astype(np.float64).copy()
    codes = np.empty((n, k), np.int64)
    scales, offsets = (np.empty((n, -(-k // g)), F32) for _ in range(2))
    if act_order:
        for p in range(scales.shape[1]):
            block = slice(p * g, (p + 1) * g)
            scales[:, p], offsets[:, p] = choose(w[:, block].astype(F32), counts[block])
    for i, column in enumerate(order):
        p = column // g
        if not act_order and column % g == 0:
            block = slice(column, column + g)
            scales[:, p], offsets[:, p] = choose(w[:, block].astype(F32), counts[block])
        codes[:, column], value = nearest(w[:, column], scales[:, p], offsets[:, p], bits)
        error = (w[:, column] - value) / upper[i, i]
        w[:, order[i:]] -= np.outer(error, upper[i, i:])
    return codes, scales, offsets


def nearest(values, scales, offsets, bits):
    """Return the codes of -2^(bits-1) to 2^(bits-1) - 1 that are nearest to values, and what they stand for."""
    highest = 2 ** (bits - 1) - 1
    inverse = np.divide(1, scales, out=np.zeros_like(scales, np.float64), where=scales != 0)
    codes = np.rint(np.clip((values - offsets) * inverse, -highest - 1, highest))
    return codes, scales.astype(np.float64) * codes + offsets


def columns(w, upper, scales, offsets, blocks, bits):
    """Return codes and errors of columns [N, B] in float32, each operation rounded once: the core's definition."""
    highest = F32(2 ** (bits - 1) - 1)
    w, codes, errors = w.astype(F32).copy(), np.empty(w.shape, np.int8), np.empty(w.shape, F32)
    for j, p in enumerate(blocks):
        with np.errstate(divide="ignore"):
            inverse = F32(1) / scales[:, p]
        inverse = np.where(np.isfinite(inverse), inverse, F32(0))
        code = np.rint(np.clip((w[:, j] - offsets[:, p]) * inverse, -highest - 1, highest)).astype(F32)
        errors[:, j] = (w[:, j] - oracle.fma(scales[:, p], code, offsets[:, p])) / upper[j, j]
        codes[:, j] = code
        w[:, j + 1 :] -= errors[:, j, None] * upper[j, j + 1 :]
    return codes, errors
