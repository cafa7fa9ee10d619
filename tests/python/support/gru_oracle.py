"""The fixed-point GRU in NumPy, written from docs/gru.md: int64 throughout, tables from Python's math."""

import math

import numpy as np

from qcore.gru import TENSORS, Format


def shifted(values, bits, rounding):
    """Return values * 2**-bits, rounded half away from zero or half to even; to the left if bits is negative."""
    values = np.asarray(values, np.int64)
    bits = np.asarray(bits, np.int64)
    left = values << np.maximum(-bits, 0)
    half = np.where(bits > 0, np.int64(1) << np.maximum(bits - 1, 0), 0)
    right = np.maximum(bits, 0)
    if rounding == "half_away":
        rounded = np.sign(values) * ((np.abs(values) + half) >> right)
    else:
        below = values >> right
        rest = values - (below << right)
        rounded = below + ((rest > half) | ((rest == half) & (below % 2 == 1)))
    return np.where(bits > 0, rounded, left)


def table(function, source, target):
    """Return the code of function for every code of source, lowest first."""
    codes = []
    for code in range(source.lowest, source.highest + 1):
        value = function(math.ldexp(code - source.zero_point, -source.exponent))
        scaled = math.ldexp(value, target.exponent)
        below = math.floor(scaled)
        nearest = below + (scaled - below > 0.5 or (scaled - below == 0.5 and below % 2 == 1))
        codes.append(min(max(nearest + target.zero_point, target.lowest), target.highest))
    return np.array(codes, np.int64)


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


class Oracle:
    """parts: what qcore.gru.calibration makes of one direction; pipeline and rounding as in Config."""

    def __init__(self, parts, pipeline, rounding):
        self.p, self.pipeline, self.rounding = parts, pipeline, rounding
        self.linear_before_reset = parts.get("linear_before_reset", 1)
        self.f = {
            name: Format(int(row[0]), bool(row[1]), int(row[2]), int(row[3]))
            for name, row in zip(TENSORS, parts["formats"], strict=True)
        }
        self.tables = [
            table(sigmoid, self.f["z_pre"], self.f["z"]),
            table(sigmoid, self.f["r_pre"], self.f["r"]),
            table(math.tanh, self.f["g_pre"], self.f["g"]),
        ]

    def rs(self, values, bits):
        return shifted(values, bits, self.rounding)

    def clamp(self, values, name):
        form = self.f[name]
        return np.clip(values + form.zero_point, form.lowest, form.highest)

    def product(self, codes, weights, exponents, bias, bias_exponents, source, target):
        """Return codes [B, rows of weights] of codes [B, K]."""
        f = self.f
        total = (codes.astype(np.int64) - f[source].zero_point) @ weights.astype(np.int64).T
        scale = exponents.astype(np.int64) + f[source].exponent
        if self.pipeline == "fused":
            total = total + self.rs(bias, bias_exponents - scale)
        return self.clamp(self.rs(total, scale - f[target].exponent), target)

    def step(self, x, h):
        """Return gates [B, 4H] (z, r, g, R h + br) and the new h of codes [B, C] and [B, H]."""
        p, f, size = self.p, self.f, h.shape[1]
        e = {name: form.exponent for name, form in f.items()}
        z = {name: form.zero_point for name, form in f.items()}
        wx = self.product(x, p["w"], p["w_exponents"], p["bx"], p["bx_exponents"], "x", "wx") - z["wx"]
        wx = np.split(wx, 3, axis=1)

        def recurrent(i, codes, source):
            rows = slice(i * size, (i + 1) * size)
            arrays = [p[name][rows] for name in ("r", "r_exponents", "br", "br_exponents")]
            return self.product(codes, *arrays, source, "rh") - z["rh"]

        bx, br = np.split(p["bx"].astype(np.int64), 3), np.split(p["br"].astype(np.int64), 3)
        ebx, ebr = np.split(p["bx_exponents"].astype(np.int64), 3), np.split(p["br_exponents"].astype(np.int64), 3)
        staged = self.pipeline == "staged"

        def gate(i, pre):
            total = self.rs(wx[i], e["wx"] - e[pre]) + self.rs(recurrent(i, h, "h"), e["rh"] - e[pre])
            if staged:
                total = total + self.rs(bx[i], ebx[i] - e[pre]) + self.rs(br[i], ebr[i] - e[pre])
            return self.tables[i][self.clamp(total, pre) - f[pre].lowest]

        gz, gr = gate(0, "z_pre"), gate(1, "r_pre")
        one = 1 << e["z"]
        if self.linear_before_reset:
            product = recurrent(2, h, "h")
        else:
            reset = self.rs((gr - z["r"]) * (h.astype(np.int64) - z["h"]), e["r"] + e["h"] - e["rrh"])
            product = recurrent(2, self.clamp(reset, "rrh"), "rrh")
        total = self.rs(wx[2], e["wx"] - e["g_pre"])
        if staged:
            rb = self.clamp(self.rs(product, e["rh"] - e["rb"]) + self.rs(br[2], ebr[2] - e["rb"]), "rb")
            total = total + self.rs(bx[2], ebx[2] - e["g_pre"])
        else:
            rb = product + z["rh"]
        if not self.linear_before_reset:
            name = "rb" if staged else "rh"
            total = total + self.rs(rb - z[name], e[name] - e["g_pre"])
        elif staged:
            rrh = self.clamp(self.rs((gr - z["r"]) * (rb - z["rb"]), e["r"] + e["rb"] - e["rrh"]), "rrh")
            total = total + self.rs(rrh - z["rrh"], e["rrh"] - e["g_pre"])
        else:
            total = total + self.rs((gr - z["r"]) * product, e["r"] + e["rh"] - e["g_pre"])
        gg = self.tables[2][self.clamp(total, "g_pre") - f["g_pre"].lowest]
        kept, new, state = gz - z["z"], gg - z["g"], h.astype(np.int64) - z["h"]
        if staged:
            old_part = self.clamp(self.rs(kept * state, e["z"] + e["h"] - e["old_part"]), "old_part")
            new_part = self.clamp(self.rs((one - kept) * new, e["z"] + e["g"] - e["new_part"]), "new_part")
            total = self.rs(old_part - z["old_part"], e["old_part"] - e["h"])
            total = total + self.rs(new_part - z["new_part"], e["new_part"] - e["h"])
        else:
            total = self.rs(kept * state + (one - kept) * self.rs(new, e["g"] - e["h"]), e["z"])
        assert size == total.shape[1]
        return np.concatenate([gz, gr, gg, rb], axis=1), self.clamp(total, "h")

    def run(self, x, h0=None, *, reverse=False, lengths=None):
        """Return y [T, B, H], last [B, H] and gates [T, B, 4H] of codes x [T, B, C]."""
        steps, batch, _ = x.shape
        size = self.p["sizes"][1]
        zero = self.f["h"].zero_point
        y = np.full((steps, batch, size), zero, np.int64)
        gates = np.zeros((steps, batch, 4 * size), np.int64)
        last = np.full((batch, size), zero, np.int64) if h0 is None else h0.astype(np.int64)
        lengths = np.full(batch, steps) if lengths is None else np.asarray(lengths)
        for b in range(batch):
            order = range(lengths[b] - 1, -1, -1) if reverse else range(lengths[b])
            h = last[b : b + 1]
            for t in order:
                gates[t, b], h = (
                    array[0] if i == 0 else array for i, array in enumerate(self.step(x[t, b : b + 1], h))
                )
                y[t, b] = h[0]
            last[b] = h[0]
        return y, last, gates


def random_parts(rng, c, h, *, wide=False):
    """Return parameters of no float model at all: any widths, zero points and exponents that fit together."""
    formats = []
    for name in TENSORS:
        bits = int(rng.integers(2, 17)) if wide else int(rng.choice([8, 16]))
        signed = name not in ("z", "r")
        form = Format(bits, signed, 0)
        exponent = {
            "z": int(rng.integers(0, bits + 1)),
            "r": int(rng.integers(0, bits + 1)),
            "g": int(rng.integers(0, bits)),
        }.get(name, int(rng.integers(-2, 12)))
        zero = 0 if name in ("z", "r", "g") else int(rng.integers(form.lowest, form.highest + 1))
        formats.append((bits, signed, exponent, zero))
    weight_bits, bias_bits = int(rng.integers(2, 17)), int(rng.integers(2, 25))

    def codes(bits, shape, dtype):
        return rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), shape).astype(dtype)

    parts = {
        "formats": np.array(formats, np.int32),
        "sizes": (c, h),
        "weight_bits": weight_bits,
        "bias_bits": bias_bits,
        "w": codes(weight_bits, (3 * h, c), np.int16),
        "r": codes(weight_bits, (3 * h, h), np.int16),
        "bx": codes(bias_bits, 3 * h, np.int32),
        "br": codes(bias_bits, 3 * h, np.int32),
    }
    for name in ("w", "r", "bx", "br"):
        parts[f"{name}_exponents"] = rng.integers(-3, 14, 3 * h).astype(np.int32)
    return parts


def random_codes(rng, form, shape):
    return rng.integers(form.lowest, form.highest + 1, shape).astype(form.dtype)
