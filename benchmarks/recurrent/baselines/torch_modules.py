"""torch.nn.GRU or LSTM with a layer's weights, and calls of it and of what is made from it."""

from __future__ import annotations

from typing import Any

from ... import libraries
from ...implementation import Array, Bound
from ..problem import Layer, Sequences


def kind(layer: Layer) -> Any:
    """Return torch's class of the layer."""
    nn = libraries.torch().nn
    return nn.LSTM if layer.cell == "lstm" else nn.GRU


def module(layer: Layer) -> Any:
    torch = libraries.torch()
    made = kind(layer)(layer.inputs, layer.hidden)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    made.load_state_dict({name: torch.from_numpy(array) for name, array in zip(names, layer.torch_arrays, strict=True)})
    return made.eval()


def bind(layer: Any, data: Sequences, dtype: Any) -> Bound:
    x = libraries.torch().from_numpy(data.x).to(dtype)
    if not data.streamed:
        return Bound(lambda _: layer(x), lambda: layer(x)[0].float().numpy())
    steps = [x_t.unsqueeze(0).contiguous() for x_t in x]
    state, at = None, 0

    def run(_: int) -> object:
        nonlocal state, at
        at = (at + 1) % len(steps)
        y, state = layer(steps[at], state)
        return y

    return Bound(run, lambda: _stream(layer, steps))


def _stream(layer: Any, steps: list[Any]) -> Array:
    state, found = None, []
    for x_t in steps:
        y, state = layer(x_t, state)
        found.append(y[0].float())
    stacked: Array = libraries.torch().stack(found).numpy()
    return stacked
