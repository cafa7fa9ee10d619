"""The GRU in float64: what is quantized, and what calibration looks at."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore._recurrent.direction import Doubles, sigmoid
from qcore._recurrent.weights import Watch
from qcore.gru.direction import Direction


def run(
    weights: Direction, x: Doubles, h0: Doubles | None = None, *, reverse: bool = False, watch: Watch | None = None
) -> tuple[Doubles, Doubles]:
    """Compute y [T, B, H] and the last state [B, H] of x [T, B, C] and h0 [B, H] or None."""
    size = weights.hidden_size
    steps, batch = x.shape[:2]
    h = np.zeros((batch, size)) if h0 is None else h0.astype(np.float64)
    y = np.empty((steps, batch, size))
    see: Any = watch or (lambda name, step, values: None)
    if h0 is not None:  # default zeros need no observation, because the range contains 0 anyway
        see("h", 0, h)
    for step, t in enumerate(range(steps - 1, -1, -1) if reverse else range(steps)):
        see("x", step, x[t])
        wx, rh = x[t] @ weights.w.T, h @ weights.r.T
        z_pre = wx[:, :size] + rh[:, :size] + weights.bx[:size] + weights.br[:size]
        r_pre = wx[:, size : 2 * size] + rh[:, size : 2 * size] + (weights.bx + weights.br)[size : 2 * size]
        z, r = sigmoid(z_pre), sigmoid(r_pre)
        if not weights.linear_before_reset:
            rh[:, 2 * size :] = (r * h) @ weights.r[2 * size :].T
        see("wx", step, wx)
        see("rh", step, rh)
        see("rh_with_bias", step, rh + weights.br)
        rb = rh[:, 2 * size :] + weights.br[2 * size :]
        rrh = r * rb if weights.linear_before_reset else r * h
        g_pre = wx[:, 2 * size :] + weights.bx[2 * size :] + (rrh if weights.linear_before_reset else rb)
        g = np.tanh(g_pre)
        old_part, new_part = z * h, (1 - z) * g
        h = old_part + new_part
        see("wx_with_bias", step, wx + weights.bx)
        for name, values in (
            ("z_pre", z_pre),
            ("r_pre", r_pre),
            ("g_pre", g_pre),
            ("z", z),
            ("r", r),
            ("g", g),
            ("rb", rb),
            ("rrh", rrh),
            ("old_part", old_part),
            ("new_part", new_part),
            ("h", h),
        ):
            see(name, step, values)
        y[t] = h
    return y, h
