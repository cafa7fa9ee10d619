"""The fixed-point LSTM in NumPy, written from docs/recurrent/lstm.md: int64 throughout, tables from Python's math."""

import math

import numpy as np
from gru_oracle import shifted, sigmoid, table

from qcore.lstm import TENSORS, Format

GATES = "ifgo"
PROJECTED = (*TENSORS, "m")


class Oracle:
    """parts: what qcore.lstm's calibration makes of one direction; rounding as in Config."""

    def __init__(self, parts, rounding):
        self.p, self.rounding = parts, rounding
        self.projected = "projection" in parts
        self.f = {
            name: Format(int(row[0]), bool(row[1]), int(row[2]), int(row[3]))
            for name, row in zip(PROJECTED if self.projected else TENSORS, parts["formats"], strict=True)
        }
        functions = {"i": sigmoid, "f": sigmoid, "g": math.tanh, "o": sigmoid}
        self.tables = {gate: table(functions[gate], self.f[f"{gate}_pre"], self.f[gate]) for gate in GATES}
        self.tables["c_tanh"] = table(math.tanh, self.f["c"], self.f["c_tanh"])

    def rs(self, values, bits):
        return shifted(values, bits, self.rounding)

    def settle(self, values, name):
        """Return codes of values that count from the zero point."""
        form = self.f[name]
        return np.clip(values + form.zero_point, form.lowest, form.highest)

    def product(self, codes, weights, source, target):
        """Return codes of codes [B, K], one for each row of weights; the bias is part of W x."""
        p, form = self.p, self.f[source]
        total = (codes.astype(np.int64) - form.zero_point) @ p[weights].astype(np.int64).T
        scale = p[f"{weights}_exponents"].astype(np.int64) + form.exponent
        if target == "wx":
            total = total + self.rs(p["b"], p["b_exponents"] - scale)
        return self.settle(self.rs(total, scale - self.f[target].exponent), target)

    def step(self, x, h, c):
        """Return codes of every tensor of one step, from codes [B, C], [B, S] and [B, H]."""
        e = {name: form.exponent for name, form in self.f.items()}
        z = {name: form.zero_point for name, form in self.f.items()}
        seen = {"wx": self.product(x, "w", "x", "wx"), "rh": self.product(h, "r", "h", "rh")}
        wx, rh = (np.split(seen[name] - z[name], 4, axis=1) for name in ("wx", "rh"))

        def gate_of(gate, cell):
            number, pre = GATES.index(gate), f"{gate}_pre"
            total = self.rs(wx[number], e["wx"] - e[pre]) + self.rs(rh[number], e["rh"] - e[pre])
            if gate != "g" and "peepholes" in self.p:
                row = "ifo".index(gate)
                exponent = int(self.p["peepholes_exponents"][row]) + e["c"]
                total = total + self.rs(self.p["peepholes"][row].astype(np.int64) * cell, exponent - e[pre])
            seen[pre] = self.settle(total, pre)
            seen[gate] = self.tables[gate][seen[pre] - self.f[pre].lowest]

        for gate in "ifg":
            gate_of(gate, c.astype(np.int64))
        kept, new = seen["f"] * c.astype(np.int64), seen["i"] * seen["g"]
        finer = max(e["f"] + e["c"], e["i"] + e["g"])
        total = (kept << (finer - e["f"] - e["c"])) + (new << (finer - e["i"] - e["g"]))
        seen["c"] = self.settle(self.rs(total, finer - e["c"]), "c")
        gate_of("o", seen["c"])
        seen["c_tanh"] = self.tables["c_tanh"][seen["c"] - self.f["c"].lowest]
        shown = "m" if self.projected else "h"
        seen[shown] = self.settle(self.rs(seen["o"] * seen["c_tanh"], e["o"] + e["c_tanh"] - e[shown]), shown)
        if self.projected:
            seen["h"] = self.product(seen["m"], "projection", "m", "h")
        return seen

    def run(self, x, h0=None, c0=None, *, reverse=False, lengths=None):
        """Return y [T, B, S], the last h [B, S] and c [B, H] and a trace [T, B, ...] of codes x [T, B, C]."""
        steps, batch, _ = x.shape
        size, outputs = self.p["sizes"][1], self.p["r"].shape[1]
        zero = self.f["h"].zero_point
        y = np.full((steps, batch, outputs), zero, np.int64)
        trace = np.zeros((steps, batch, trace_size(self.p)), np.int64)
        h = np.full((batch, outputs), zero, np.int64) if h0 is None else h0.astype(np.int64)
        c = np.zeros((batch, size), np.int64) if c0 is None else c0.astype(np.int64)
        lengths = np.full(batch, steps) if lengths is None else np.asarray(lengths)
        names = (
            "wx",
            "rh",
            *(f"{gate}_pre" for gate in GATES),
            *GATES,
            "c",
            "c_tanh",
            *(["m"] if self.projected else []),
            "h",
        )
        for b in range(batch):
            row = slice(b, b + 1)
            for t in range(lengths[b] - 1, -1, -1) if reverse else range(lengths[b]):
                seen = self.step(x[t, row], h[row], c[row])
                trace[t, b] = np.concatenate([seen[name][0] for name in names])
                y[t, b] = h[b] = seen["h"][0]
                c[b] = seen["c"][0]
        return y, h, c, trace


def trace_size(parts):
    """Return the codes of a step and row: wx, rh, arguments and gates, c, c_tanh, with a projection m, and h."""
    return (19 if "projection" in parts else 18) * parts["sizes"][1] + parts["r"].shape[1]


def random_parts(rng, c, h, *, wide=False, projection=0, peepholes=False):
    """Return parameters of no float model at all: any widths, zero points and exponents that fit together."""
    formats = []
    for name in PROJECTED if projection else TENSORS:
        bits = int(rng.integers(2, 17)) if wide else int(rng.choice([8, 16]))
        form = Format(bits, name not in ("i", "f", "o"), 0)
        free = name not in ("c", "i", "f", "g", "o", "c_tanh")
        exponent = int(rng.integers(0, bits + 1)) if name in (*GATES, "c_tanh") else int(rng.integers(-2, 12))
        zero = int(rng.integers(form.lowest, form.highest + 1)) if free else 0
        formats.append((bits, form.signed, exponent, zero))
    weight_bits, bias_bits = int(rng.integers(2, 17)), int(rng.integers(2, 25))

    def codes(bits, shape, dtype):
        return rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), shape).astype(dtype)

    parts = {
        "formats": np.array(formats, np.int32),
        "sizes": (c, h),
        "weight_bits": weight_bits,
        "bias_bits": bias_bits,
        "w": codes(weight_bits, (4 * h, c), np.int16),
        "r": codes(weight_bits, (4 * h, projection or h), np.int16),
        "b": codes(bias_bits, 4 * h, np.int32),
    }
    for name in ("w", "r", "b"):
        parts[f"{name}_exponents"] = rng.integers(-3, 14, 4 * h).astype(np.int32)
    if peepholes:
        parts["peepholes"] = codes(int(rng.integers(2, 17)), (3, h), np.int16)
        parts["peepholes_exponents"] = rng.integers(-3, 16, 3).astype(np.int32)
    if projection:
        parts["projection"] = codes(weight_bits, (projection, h), np.int16)
        parts["projection_exponents"] = rng.integers(-3, 14, projection).astype(np.int32)
    return parts
