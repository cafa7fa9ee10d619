"""The LSTM in float64: what is quantized, and what calibration looks at."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore._recurrent.direction import Doubles, sigmoid
from qcore._recurrent.weights import Watch
from qcore.lstm.direction import Direction


def run(
    weights: Direction,
    x: Doubles,
    h0: Doubles | None = None,
    c0: Doubles | None = None,
    *,
    reverse: bool = False,
    watch: Watch | None = None,
) -> tuple[Doubles, Doubles, Doubles]:
    """Compute y [T, B, S] and the last h [B, S] and c [B, H] of x [T, B, C], and h0 and c0 or None; S is h's size."""
    size = weights.state_size
    steps, batch = x.shape[:2]
    h = np.zeros((batch, size)) if h0 is None else h0.astype(np.float64)
    c = np.zeros((batch, weights.hidden_size)) if c0 is None else c0.astype(np.float64)
    y = np.empty((steps, batch, size))
    see: Any = watch or (lambda name, step, values: None)
    for name, given in (("h", h0), ("c", c0)):
        if given is not None:  # default zeros need no observation, because the range contains 0 anyway
            see(name, 0, given)
    for step, t in enumerate(range(steps - 1, -1, -1) if reverse else range(steps)):
        see("x", step, x[t])
        wx, rh = x[t] @ weights.w.T + weights.b, h @ weights.r.T
        i_pre, f_pre, g_pre, o_pre = np.split(wx + rh, 4, axis=1)
        if weights.peepholes is not None:
            i_pre, f_pre = i_pre + weights.peepholes[0] * c, f_pre + weights.peepholes[1] * c
        i, f, g = sigmoid(i_pre), sigmoid(f_pre), np.tanh(g_pre)
        c = f * c + i * g
        if weights.peepholes is not None:
            o_pre = o_pre + weights.peepholes[2] * c
        o = sigmoid(o_pre)
        c_tanh = np.tanh(c)
        m = o * c_tanh
        h = m if weights.projection is None else m @ weights.projection.T
        values = (wx, rh, i_pre, f_pre, g_pre, o_pre, i, f, g, o, c, c_tanh, h)
        names = ("wx", "rh", "i_pre", "f_pre", "g_pre", "o_pre", "i", "f", "g", "o", "c", "c_tanh", "h")
        for name, value in zip(names, values, strict=True):
            see(name, step, value)
        if weights.projection is not None:
            see("m", step, m)
        y[t] = h
    return y, h, c
