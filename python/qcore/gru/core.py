"""The fixed-point GRU itself: its layers and its calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import _arrays, _core
from qcore._recurrent.calls import checked_lengths, checked_mask, restarted
from qcore._recurrent.integers import CellBase
from qcore._recurrent.layers import RecurrentLayers
from qcore.gru.formats import TENSORS, Config
from qcore.gru.integers import Cell, ResetCell
from qcore.gru.weights import GruWeights

_PLAIN = {np.dtype(name) for name in ("float32", "float16", "int8", "int16")}

Layer = list[tuple[_core.QuantizedGru, dict[str, Any]]]
"""The core's object of each direction, with the parameters that files and reports need."""


def make(parts: dict[str, Any], config: Config) -> _core.QuantizedGru:
    """Make the core's object of one layer in one direction."""
    input_size, hidden_size = parts["sizes"]
    return _core.QuantizedGru.make(
        input_size,
        hidden_size,
        getattr(_core.GruPipeline, config.pipeline),
        getattr(_core.ShiftRounding, config.rounding),
        getattr(_core.GruTableKind, config.tables),
        parts["formats"],
        parts["weight_bits"],
        parts["bias_bits"],
        parts["w"].ravel(),
        parts["r"].ravel(),
        parts["bx"],
        parts["br"],
        parts["w_exponents"],
        parts["r_exponents"],
        parts["bx_exponents"],
        parts["br_exponents"],
        bool(parts.get("linear_before_reset", 1)),
    )


class GruCore(RecurrentLayers):
    """Layers of fixed-point GRUs without what reads, writes, measures and exports them: :class:`QuantGRU` adds that."""

    op = "gru"
    tensors = TENSORS
    cell_type: type[CellBase] = Cell
    weights_type = GruWeights
    _make = staticmethod(make)

    def __init__(
        self, layers: list[Layer], config: Config, *, batch_first: bool = False, reverse: bool = False
    ) -> None:
        super().__init__(layers, config, batch_first=batch_first, reverse=reverse)
        self._stack = _core.GruStack.make([core for layer in layers for core, _ in layer], len(layers[0]), reverse)
        self.cell_type = Cell if self.linear_before_reset else ResetCell
        self._sizes = (self.input_size, self.hidden_size, self.directions, self.num_layers)
        self._state_dtype = f"int{8 if self.format('h').bits <= 8 else 16}"
        self._state_kind = np.dtype(self._state_dtype)

    @property
    def linear_before_reset(self) -> int:
        """ONNX's option: 1 if all layers are torch's cell, 0 if one has the reset gate before its product."""
        return min(int(parts.get("linear_before_reset", 1)) for layer in self._layers for _, parts in layer)

    def _check_traceable(self) -> None:
        super()._check_traceable()
        forms = {int(parts.get("linear_before_reset", 1)) for layer in self._layers for _, parts in layer}
        if len(forms) > 1:
            raise _core.QcoreValueError(
                "gru trace: layers have linear_before_reset 0 and 1, expected one of them in all: golden files, "
                "reports and the C export have one cell"
            )

    def __repr__(self) -> str:
        form = "" if self.linear_before_reset else ", linear_before_reset=0"
        kind = "bidirectional, " if self.directions == 2 else "reverse, " if self.reverse else ""
        return (
            f"QuantGRU({self.input_size}, {self.hidden_size}, layers={self.num_layers}, {kind}"
            f"x {self.format('x').bits} bits, h {self.format('h').bits} bits, "
            f"weights {self._layers[0][0][1]['weight_bits']} bits, {self.config.pipeline}{form})"
        )

    def __call__(
        self,
        x: Any,
        h0: Any = None,
        *,
        lengths: Any = None,
        gates: bool = False,
        out: Any = None,
        stream: Any = None,
    ) -> tuple[Any, ...]:
        """Run all steps.

        Args:
            x: [T, B, C] ([B, T, C] if batch_first): float32, float16 or bfloat16, or codes (int8 or int16 of
                ``format("x")``), on the CPU or a CUDA device; any strides.
            h0: [layers * directions, B, H] on x's device: floats, or codes of ``format("h", layer)``; None for zeros.
            lengths: int32 [B] on x's device, each row's number of steps, or None. Beyond them y is 0 and the state
                stays.
            gates: whether to return the gates too.
            out: where to write y; any strides, floats or codes, no memory in common with x or h0. It is returned.
            stream: CUDA stream to run on; the caller's library's current one by default.

        Returns:
            y [T, B, directions * H] ([B, T, directions * H] if batch_first) and the last states [layers * directions,
            B, H], in x's library and on its device: floats of x's dtype, or codes of ``format("h")`` if x is codes.
            With ``gates``, also int32 [layers * directions, T, B, 4 * H]: the codes of z, r, g and R h + b
            (R (r * h) + b with linear_before_reset = 0).

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected. On a CUDA
                device values are not looked at: a NaN counts as 0 there.
            CudaError: a CUDA call failed.
        """
        given = _arrays.shape_of(x, "gru: x")
        if len(given) != 3:
            axes = "[B, T, C]" if self.batch_first else "[T, B, C]"
            raise _core.QcoreValueError(f"gru: x has shape {list(given)}, expected {axes} with C = {self._sizes[0]}")
        first, second, _ = given
        steps, batch = (second, first) if self.batch_first else (first, second)
        _, size, directions, layers = self._sizes
        if type(x) is np.ndarray and x.dtype in _PLAIN and h0 is lengths is out is stream is None and not gates:
            return self._plain_run(x, None, (first, second, directions * size), (layers * directions, batch, size))
        backend, dtype = self._backend_of(x)
        y = backend.empty(x, (first, second, directions * size), dtype, "gru: x") if out is None else out
        last = backend.empty(x, (layers * directions, batch, size), dtype, "gru: x")
        kinds = (layers * directions, steps, batch, 4 * size)
        codes = backend.empty(x, kinds, "int32", "gru: x") if gates else None
        self._run(backend, x, h0, y, last, checked_lengths("gru", lengths), codes, stream)
        results = (backend.result(y, x) if out is None else out, backend.result(last, x))
        return (*results, backend.result(codes, x)) if gates else results

    def step(
        self, x: Any, state: Any = None, *, reset: Any = None, out: Any = None, stream: Any = None
    ) -> tuple[Any, Any]:
        """Run one step of streaming; only without a backward direction.

        Args:
            x: [B, C] as for a call.
            state: what the last step returned; None at first.
            reset: bool [B], rows whose state starts anew, or None.
            out, stream: as for a call.

        Returns:
            y [B, H], and the state: codes of ``format("h", layer)``, [layers, B, H], to be passed to the next step.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; or the GRU is
                bidirectional or reversed.
            CudaError: a CUDA call failed.
        """
        _, size, _, layers = self._sizes
        self._check_streaming()
        given = _arrays.shape_of(x, "gru: x")
        if len(given) != 2:
            raise _core.QcoreValueError(f"gru: x has shape {list(given)}, expected [B, C] with C = {self._sizes[0]}")
        batch = given[0]
        if type(x) is np.ndarray and x.dtype in _PLAIN and type(state) is np.ndarray and reset is out is stream is None:
            if state.dtype != self._state_kind or state.shape != (layers, batch, size):
                self._check_state(state, batch)
            return self._plain_run(x, state, (batch, size), state.shape)
        backend, dtype = self._backend_of(x)
        y = backend.empty(x, (batch, size), dtype, "gru: x") if out is None else out
        last = backend.empty(x, (layers, batch, size), self._state_dtype, "gru: x")
        if state is not None:
            self._check_state(state, batch)
        if reset is not None:
            mask = checked_mask("gru", reset, batch)
            zeros = [self.format("h", layer).zero_point for layer in range(layers)]
            state = None if state is None else restarted(state, mask, zeros)
        self._run(backend, x, state, y, last, None, None, stream)
        return backend.result(y, x) if out is None else out, backend.result(last, x)

    def _plain_run(self, x: Any, state: Any, shape: tuple[int, ...], states: tuple[int, ...]) -> tuple[Any, Any]:
        """Run on NumPy's arrays without options: the general way takes a third of the time of a small call.

        The last states are codes after a state, as x otherwise.
        """
        dtype = x.dtype if x.dtype.kind == "f" else self._state_kind
        y = _arrays.empty_numpy(shape, dtype, "gru")
        last = _arrays.empty_numpy(states, dtype if state is None else self._state_kind, "gru")
        self._stack.run(x, state, y, last, self.batch_first, None, None, 0)
        return y, last

    def _backend_of(self, x: Any) -> tuple[_arrays.ArrayBackend, str | None]:
        """Return x's backend, and the dtype of results: None for x's own."""
        backend = _arrays.backend_of(x, "gru: x")
        return backend, None if _arrays.dtype_of(x, "gru: x") in _arrays.FLOATING else self._state_dtype

    def _run(
        self, backend: _arrays.ArrayBackend, x: Any, h0: Any, y: Any, last: Any, lengths: Any, gates: Any, stream: Any
    ) -> None:
        address = backend.stream(x) if stream is None else _arrays.stream_address(stream, backend, x, "gru: stream")
        self._stack.run(
            backend.readable(x, "gru: x"),
            None if h0 is None else _arrays.readable(h0, "gru: h0"),
            _arrays.backend_of(y, "gru: out").writable(y, "gru: out"),
            backend.writable(last, "gru: last"),
            self.batch_first,
            lengths,
            None if gates is None else backend.writable(gates, "gru: gates"),
            address,
        )

    def _check_state(self, state: Any, batch: int) -> None:
        expected = (self._sizes[3], batch, self._sizes[1])
        shape, dtype = tuple(_arrays.shape_of(state, "gru: state")), _arrays.dtype_of(state, "gru: state")
        if shape != expected or dtype != self._state_dtype:
            raise _core.QcoreValueError(
                f"gru: state is {dtype} {list(shape)}, expected {self._state_dtype} {list(expected)}, as the last step "
                "returned it"
            )
