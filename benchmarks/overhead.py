"""Time of a call of `qcore.linear` on a layer so small that only the way to the kernel counts.

Run it on a quiet machine; torch and jax are measured where they are installed. The figure is the smallest mean of many
short runs, since whatever disturbs a call only adds to it.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import numpy as np

import qcore
from qcore import _core


def microseconds(call: Callable[[], object], calls: int = 5000, runs: int = 15) -> float:
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - started) / calls)
    return best * 1e6


def main() -> None:
    rng = np.random.default_rng(0)
    weight = qcore.quantize(rng.standard_normal((8, 32), dtype=np.float32), bits=8, block_size=32)
    x = rng.standard_normal((1, 32), dtype=np.float32)
    out = np.empty((1, 8), np.float32)
    handle = weight._handle
    options = (_core.Compute.int8, _core.ActivationKind.none, 0.0, 0.0, 0)

    rows: list[tuple[str, Callable[[], object]]] = [
        ("the compiled function alone, numpy", lambda: _core.linear(x, handle, None, out, *options)),
        ("numpy, out=", lambda: qcore.linear(x, weight, out=out)),
        ("numpy", lambda: qcore.linear(x, weight)),
    ]
    if importlib.util.find_spec("torch"):
        import torch

        x_torch, out_torch = torch.from_numpy(x.copy()), torch.empty(1, 8)
        rows += [
            ("torch, out=", lambda: qcore.linear(x_torch, weight, out=out_torch)),
            ("torch", lambda: qcore.linear(x_torch, weight)),
            ("torch.empty alone", lambda: torch.empty((1, 8), dtype=x_torch.dtype, device=x_torch.device)),
        ]
    if importlib.util.find_spec("jax"):
        import jax.numpy as jnp

        x_jax = jnp.asarray(x)
        rows.append(("jax", lambda: qcore.linear(x_jax, weight)))
    for name, call in rows:
        print(f"{name:<36}{microseconds(call):6.2f} us")


if __name__ == "__main__":
    main()
