"""Layers as bitsandbytes writes them into files, made and decoded by NumPy alone."""

import json

import numpy as np

NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0]
NF4 += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
TABLES = {"nf4": np.array(NF4, np.float32), "fp4": np.array(FP4 + [-each for each in FP4], np.float32)}
DIVISORS = {"nf4": 112.03, "fp4": 120.0}
"""Factors by which qcore multiplies a table before it rounds it to integers; the smallest number of FP4 becomes 1."""
STATE = "weight.quant_state.bitsandbytes__"


def four_bits(matrix, quant_type, block_size=32, nested=False, storage=np.uint8):
    """Return the parts of a layer in 4 bits, by the ends of their names."""
    table = TABLES[quant_type]
    blocks = matrix.reshape(-1, block_size)
    absmax = np.abs(blocks).max(1).astype(np.float32)
    codes = np.abs((blocks / absmax[:, None])[..., None] - table).argmin(-1).astype(np.uint8).reshape(-1)
    packed = (codes[0::2] << 4 | codes[1::2]).view(storage).reshape(-1, 1)
    parts = {"weight": packed, "weight.absmax": absmax, "weight.quant_map": table.copy()}
    state = {"quant_type": quant_type, "blocksize": block_size, "dtype": "float32", "shape": list(matrix.shape)}
    if nested:
        # The table of bitsandbytes is dense around 0; any sorted one shows that it is read.
        steps = np.linspace(-1, 1, 256)
        dynamic = (np.sign(steps) * steps**2).astype(np.float32)
        offset = float(absmax.mean())
        rest = np.pad(absmax - np.float32(offset), (0, -len(absmax) % 256)).reshape(-1, 256)
        outer = np.abs(rest).max(1).astype(np.float32)
        numbers = np.abs((rest / outer[:, None])[..., None] - dynamic).argmin(-1).reshape(-1)[: len(absmax)]
        parts |= {"weight.absmax": numbers.astype(np.uint8), "weight.nested_absmax": outer}
        parts["weight.nested_quant_map"] = dynamic
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    parts[STATE + quant_type] = described(state)
    return parts


def described(state):
    """Return the description of a layer as its file has it."""
    return np.frombuffer(json.dumps(state).encode(), np.uint8).copy()


def scales_of(parts):
    """Return absmax, float32."""
    absmax = parts["weight.absmax"]
    if absmax.dtype != np.uint8:
        return absmax
    (description,) = (array for part, array in parts.items() if part.startswith(STATE))
    outer = np.repeat(parts["weight.nested_absmax"], 256)[: len(absmax)]
    offset = np.float32(json.loads(description.tobytes())["nested_offset"])
    return parts["weight.nested_quant_map"][absmax] * outer + offset


def decoded(parts):
    """Return the values of the parts as qcore reads them, and as bitsandbytes does, and absmax; all [N, K]."""
    ((kind, description),) = ((part.removeprefix(STATE), each) for part, each in parts.items() if STATE in part)
    state = json.loads(description.tobytes())
    size, shape = state["blocksize"], state["shape"]
    packed = parts["weight"].reshape(-1).view(np.uint8)
    codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1, size)
    absmax = scales_of(parts).reshape(-1, 1)
    integers = np.rint(TABLES[kind].astype(np.float64) * DIVISORS[kind]).astype(np.float32)
    scales = (absmax.astype(np.float64) / DIVISORS[kind]).astype(np.float32)
    ours, theirs = integers[codes] * scales, TABLES[kind][codes] * absmax
    return ours.reshape(shape), theirs.reshape(shape), np.repeat(absmax, size, 1).reshape(shape)


def int8(matrix):
    """Return the parts of a layer of LLM.int8(), and its values as qcore reads them."""
    rows = np.abs(matrix).max(1).astype(np.float32)
    codes = np.rint(matrix / rows[:, None] * 127).astype(np.int8)
    scales = (rows.astype(np.float64) / 127).astype(np.float32)
    return {"weight": codes, "SCB": rows, "weight_format": np.array(0, np.uint8)}, codes * scales[:, None]
