"""GPTQ checkpoints, versions 1 and 2, of 2, 3, 4 and 8 bits.

Codes are a bit stream in words of 32 bits, lowest bits first; one of 3 bits may begin in a word and end in the next:

| array | layout |
|---|---|
| qweight | int32 [K * bits / 32, N]; k is at bit k * bits of its column |
| qzeros | int32 [P, N * bits / 32]; n is at bit n * bits of its row. Version 1 stores z - 1, version 2 z |
| scales | float16 [P, N] |
| g_idx | int32 [K], the block of every k; without it k / g |

Value: ``w[k, n] = (u - z) * s``. Source: AutoGPTQ and GPTQModel (arXiv 2210.17323).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _bits, _inputs, _outputs, _zero_point_codec
from qcore.quantized_tensor import QuantizedTensor
from qcore.reordered_tensor import ReorderedTensor

_WRAPPED = {None: None, "zero": True, "carry": False}


def from_gptq(
    qweight: Any,
    scales: Any,
    qzeros: Any,
    g_idx: Any = None,
    *,
    bits: int,
    version: int,
    block_size: int | None = None,
    wrapped_zeros: str | None = None,
) -> QuantizedTensor | ReorderedTensor:
    """Return a weight [N, K] of a GPTQ checkpoint, exactly.

    Args:
        qweight: int32 [K * bits / 32, N].
        scales: float16 [P, N].
        qzeros: int32 [P, N * bits / 32].
        g_idx: integers [K], or None for blocks in the order of k. Any other order ("act-order", "desc_act") gives a
            ReorderedTensor: K sorted by block, stably, and the permutation, which ``linear`` applies to x.
        bits: 2, 3, 4 or 8.
        version: 1 (``"checkpoint_format": "gptq"``, zero points stored less 1) or 2 (``"gptq_v2"``). The arrays don't
            tell.
        block_size: elements of K in a block; K / P by default, and with ``g_idx`` what it says.
        wrapped_zeros: what a zero point of version 1 stored with all bits set means: "zero" (z = 0, stored as -1) or
            "carry" (z = 2^bits). Programs differ; by default such a checkpoint is refused.

    Returns:
        An encoded weight with the codes, scales and zero points of the file; a plain one of 4 or 8 bits if all zero
        points are ``2^(bits - 1)``, or one is 256. ``dequantize()`` is ``(u - z) * s`` without a rounding.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype, g_idx has no blocks of one size, or a zero
            point has two meanings.
    """
    where = "from_gptq"
    width = _bits_of(bits, where)
    packed = _inputs.words(qweight, f"{where}: qweight", "[K * bits / 32, N]")
    k, n = packed.shape[0] * 32 // width, packed.shape[1]
    if packed.shape[0] * 32 % width:
        raise _core.QcoreValueError(f"{where}: qweight has {packed.shape[0]} rows, expected a multiple of {width}")
    s = _inputs.reals(scales, f"{where}: scales", ("float16",))
    if s.ndim != 2 or s.shape[1] != n or s.shape[0] == 0:
        raise _core.QcoreValueError(f"{where}: scales has shape {list(s.shape)}, expected [P, {n}]")
    blocks = s.shape[0]
    stored = _inputs.words(qzeros, f"{where}: qzeros", "[P, N * bits / 32]")
    _inputs.check_shape(stored, (blocks, -(-n * width // 32)), f"{where}: qzeros", "[P, N * bits / 32]")
    zeros = _zeros(_bits.codes_of_words(stored, width)[:, :n], width, version, wrapped_zeros, where)
    order, size = order_of(g_idx, k, blocks, block_size, where)
    codes = _bits.codes_of_words(np.ascontiguousarray(packed.T), width)
    if order is not None:
        codes = codes[:, order]
    tensor = _zero_point_codec.decode(codes, zeros.T, s.T, bits=width, block_size=size, where=where)
    return tensor if order is None else ReorderedTensor(tensor, order)


def to_gptq(
    weight: QuantizedTensor | ReorderedTensor, *, version: int
) -> tuple[NDArray[np.int32], NDArray[np.float16], NDArray[np.int32], NDArray[np.int32]]:
    """Return qweight, scales, qzeros and g_idx of a weight, as :func:`from_gptq` takes them.

    Args:
        weight: a QuantizedTensor or ReorderedTensor [N, K].
        version: 1 or 2, as for :func:`from_gptq`.

    Returns:
        int32 [K * bits / 32, N], float16 [P, N], int32 [P, N * bits / 32] and int32 [K].

    Raises:
        QcoreValueError: the format can't hold the weight exactly: N or K is no multiple of 32 / bits (of 32 with 3
            bits), a scale isn't a float16, an offset isn't ``scale * (2^(bits - 1) - z)`` with z in 0..2^bits - 1, or
            z = 0 and version is 1, whose zero points begin at 1.
    """
    where = "to_gptq"
    inner = _outputs.matrix(
        weight.weight if isinstance(weight, ReorderedTensor) else weight, where, (2, 3, 4, 8), zero_points=True
    )
    n, k = inner.shape
    per_word = 32 if inner.bits == 3 else 32 // inner.bits
    _outputs.multiple(n, per_word, f"{where}: N")
    _outputs.multiple(k, per_word, f"{where}: K")
    first = _checks.choice(version, {1: 1, 2: 0}, f"{where}: version")
    codes, zeros, scales = _zero_point_codec.encode(inner, where)
    if zeros.min() < first:
        raise _core.QcoreValueError(
            f"{where}: weight has a zero point 0, expected 1 or more, which version 1 can hold: use version=2"
        )
    halves = _outputs.halves(scales, f"{where}: weight's scales")
    blocks = (np.arange(k) // inner.block_size).astype(np.int32)
    if isinstance(weight, ReorderedTensor):
        back = np.argsort(weight.order)
        codes, blocks = codes[:, back], blocks[back]
    return (
        np.ascontiguousarray(_bits.words_of_codes(codes, inner.bits).T),
        np.ascontiguousarray(halves.T),
        _bits.words_of_codes(np.ascontiguousarray(zeros.T) - np.uint8(first), inner.bits),
        blocks,
    )


def _bits_of(bits: Any, where: str) -> int:
    return _checks.choice(bits, {2: 2, 3: 3, 4: 4, 8: 8}, f"{where}: bits")


def _zeros(stored: NDArray[np.uint8], bits: int, version: Any, wrapped: Any, where: str) -> NDArray[np.int16]:
    first = _checks.choice(version, {1: 1, 2: 0}, f"{where}: version")
    wraps = _checks.choice(wrapped, _WRAPPED, f"{where}: wrapped_zeros")
    zeros = stored.astype(np.int16) + first
    over = zeros == 1 << bits
    if over.any() and wraps is None:
        block, column = (int(i) for i in np.argwhere(over)[0])
        raise _core.QcoreValueError(
            f"{where}: qzeros has {(1 << bits) - 1} for block {block}, column {column}, which in version 1 is z = 0 to "
            f"some programs and z = {1 << bits} to others, expected wrapped_zeros='zero' or 'carry' to say which"
        )
    return np.where(over, 0, zeros).astype(np.int16) if wraps else zeros


def order_of(g_idx: Any, k: int, blocks: int, block_size: Any, where: str) -> tuple[NDArray[np.intp] | None, int]:
    """Return the permutation that sorts K by block, None for none, and the block size."""
    size = None if block_size is None else _checks.integer(block_size, f"{where}: block_size")
    if g_idx is None:
        if size is None and k % blocks:
            raise _core.QcoreValueError(f"{where}: K = {k} is no multiple of P = {blocks}: pass block_size or g_idx")
        size = k // blocks if size is None else size
        if size < 1 or -(-k // size) != blocks:
            raise _core.QcoreValueError(f"{where}: block_size is {size}, expected one that gives P = {blocks}")
        return None, size
    groups = _inputs.host(g_idx, f"{where}: g_idx")
    if groups.dtype.kind not in "iu":
        raise _core.QcoreTypeError(f"{where}: g_idx has dtype {groups.dtype}, expected int32")
    _inputs.check_shape(groups, (k,), f"{where}: g_idx", "[K]")
    if groups.min() < 0 or groups.max() >= blocks:
        raise _core.QcoreValueError(
            f"{where}: g_idx has values from {groups.min()} to {groups.max()}, expected 0 to {blocks - 1}"
        )
    counts = np.bincount(groups, minlength=blocks)
    size = int(counts[0]) if size is None else size
    order = np.argsort(groups, kind="stable")
    if size < 1 or not np.array_equal(groups[order], np.arange(k) // size) or -(-k // size) != blocks:
        raise _core.QcoreValueError(
            f"{where}: g_idx has blocks of {counts.min()} to {counts.max()} elements, expected P = {blocks} blocks of "
            f"{size or 'one size'} (the last may be shorter)"
        )
    return (None if np.array_equal(order, np.arange(k)) else order), size
