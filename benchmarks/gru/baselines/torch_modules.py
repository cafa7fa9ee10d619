"""torch.nn.GRU with a layer's weights, and calls of it and of what is made from it."""

from __future__ import annotations

from typing import Any

from ... import libraries
from ...implementation import Array, Bound
from ..problem import Layer, Sequences


def module(layer: Layer) -> Any:
    torch = libraries.torch()
    gru = torch.nn.GRU(layer.inputs, layer.hidden)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    gru.load_state_dict({name: torch.from_numpy(array) for name, array in zip(names, layer.torch_arrays, strict=True)})
    return gru.eval()


def bind(gru: Any, data: Sequences, dtype: Any) -> Bound:
    x = libraries.torch().from_numpy(data.x).to(dtype)
    if not data.streamed:
        return Bound(lambda _: gru(x), lambda: gru(x)[0].float().numpy())
    steps = [x_t.unsqueeze(0).contiguous() for x_t in x]
    state, at = None, 0

    def run(_: int) -> object:
        nonlocal state, at
        at = (at + 1) % len(steps)
        y, state = gru(steps[at], state)
        return y

    return Bound(run, lambda: _stream(gru, steps))


def _stream(gru: Any, steps: list[Any]) -> Array:
    state, found = None, []
    for x_t in steps:
        y, state = gru(x_t, state)
        found.append(y[0].float())
    stacked: Array = libraries.torch().stack(found).numpy()
    return stacked
