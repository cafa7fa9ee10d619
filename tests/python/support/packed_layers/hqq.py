"""Layers as HQQLinear.state_dict writes them for safetensors, made and decoded by NumPy alone."""

import numpy as np

PACKINGS = {2: "2bit_u8", 3: "3bit_32", 4: "4bit_u8", 8: "8bit_u8"}


def packed(codes, bits):
    """Return W_q of codes [groups, group_size]: rows in parts of equal height, the first in the highest bits."""
    parts = 10 if bits == 3 else 8 // bits
    codes = np.pad(codes, ((0, -len(codes) % parts), (0, 0))).astype(np.int32 if bits == 3 else np.uint8)
    runs = np.split(codes, parts)
    return np.bitwise_or.reduce([run << (bits * (parts - 1 - i)) for i, run in enumerate(runs)]).astype(codes.dtype)


def layer(matrix, bits, group_size=32, dtype=np.float16, round_zero=None, wide=None):
    """Return the parts of a layer, by the ends of their names, and its values as qcore reads them.

    Args:
        matrix: float32 [N, K].
        bits: 2, 3, 4 or 8.
        group_size: a divisor of K.
        dtype: that of scales and zeros.
        round_zero: whether zeros are integers; by default those of 4 bits, as HQQ has it.
        wide: a function that returns scales or zeros rounded to a dtype that NumPy lacks, in float32.
    """
    groups = matrix.reshape(-1, group_size).astype(np.float64)
    low, high, most = groups.min(1, keepdims=True), groups.max(1, keepdims=True), 2**bits - 1
    scale = (high - low) / most
    zero = -low / scale
    if bits == 4 if round_zero is None else round_zero:
        zero = np.rint(zero)
    scale, zero = (each.astype(dtype) if wide is None else wide(each) for each in (scale, zero))
    codes = np.clip(np.rint(groups / scale + zero), 0, most).astype(np.uint8)
    parts = {"W_q": packed(codes, bits), "scale": scale, "zero": zero, "shape": np.array(matrix.shape, np.int64)}
    parts |= {
        name: np.array(value, np.int32) for name, value in {"nbits": bits, "group_size": group_size, "axis": 1}.items()
    }
    flags = ("view_as_float", "quant_scale", "quant_zero", "offload_meta", "round_zero")
    parts |= {name: np.array(0, np.uint8) for name in flags}
    parts |= {
        name: np.array(1, np.uint8)
        for name in ("encoded_state_dict", "stores_quant_config", "channel_wise", "optimize")
    }
    texts = {"packing": PACKINGS[bits], "compute_dtype": "torch.float16"}
    texts["unpack_view_dtype"] = "torch.int32" if bits == 3 else "torch.uint8"
    parts |= {name: text(value) for name, value in texts.items()}
    return parts, decoded(codes, scale, zero, bits).reshape(matrix.shape)


def text(value):
    """Return a text as the files have it."""
    return np.array([ord(each) for each in value], np.uint8)


def decoded(codes, scale, zero, bits):
    """Return the values of codes in groups, in float32: the formula, or with offsets that float32 has rounded."""
    s, z = scale.astype(np.float64), zero.astype(np.float64)
    integers = ((z == np.rint(z)) & (z >= 0) & (z <= 255)).all()
    minima = (-s * z).astype(np.float32)
    middle = 128 if bits == 8 else 0
    offsets = (minima + s * middle).astype(np.float32)
    if integers or ((minima == -s * z) & (offsets == minima + s * middle)).all():
        return ((codes - z) * s).astype(np.float32)
    return ((codes.astype(np.float64) - middle) * s + offsets).astype(np.float32)
