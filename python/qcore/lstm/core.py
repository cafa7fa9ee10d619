"""The fixed-point LSTM itself: its layers and its calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import _arrays, _core
from qcore._recurrent.calls import checked_lengths, checked_mask, restarted
from qcore._recurrent.integers import CellBase
from qcore._recurrent.layers import RecurrentLayers
from qcore.lstm.formats import TENSORS, Config
from qcore.lstm.integers import Cell
from qcore.lstm.weights import LstmWeights

_PLAIN = {np.dtype(name) for name in ("float32", "float16", "int8", "int16")}

Layer = list[tuple[_core.QuantizedLstm, dict[str, Any]]]
"""The core's object of each direction, with the parameters that files and reports need."""


def make(parts: dict[str, Any], config: Config) -> _core.QuantizedLstm:
    """Make the core's object of one layer in one direction."""
    input_size, hidden_size = parts["sizes"]
    return _core.QuantizedLstm.make(
        input_size,
        hidden_size,
        getattr(_core.ShiftRounding, config.rounding),
        getattr(_core.GruTableKind, config.tables),
        parts["formats"],
        parts["weight_bits"],
        parts["bias_bits"],
        parts["w"].ravel(),
        parts["r"].ravel(),
        parts["b"],
        parts["w_exponents"],
        parts["r_exponents"],
        parts["b_exponents"],
        parts["projection"].shape[0] if "projection" in parts else 0,
        *_optional(parts, "projection"),
        *_optional(parts, "peepholes"),
    )


def _optional(parts: dict[str, Any], name: str) -> tuple[Any, Any]:
    """Return codes and exponents of weights that not every LSTM has."""
    if name not in parts:
        return np.zeros(0, np.int16), np.zeros(0, np.int32)
    return parts[name].ravel(), parts[f"{name}_exponents"]


class LstmCore(RecurrentLayers):
    """Layers of fixed-point LSTMs without what reads, writes and measures them: :class:`QuantLSTM` adds that."""

    op = "lstm"
    tensors: tuple[str, ...] = TENSORS
    cell_type: type[CellBase] = Cell
    weights_type = LstmWeights
    _make = staticmethod(make)

    def __init__(
        self, layers: list[Layer], config: Config, *, batch_first: bool = False, reverse: bool = False
    ) -> None:
        super().__init__(layers, config, batch_first=batch_first, reverse=reverse)
        self.cell_type = Cell.variant(layers[0][0][1])
        self.tensors = self.cell_type.formats
        self._stack = _core.LstmStack.make([core for layer in layers for core, _ in layer], len(layers[0]), reverse)
        self._state_dtypes = [str(self.format(name).dtype) for name in ("h", "c")]
        self._state_kinds = tuple(np.dtype(name) for name in self._state_dtypes)
        self._sizes = (self.input_size, self.output_size, self.hidden_size, self.num_layers * self.directions)

    def __repr__(self) -> str:
        kind = "bidirectional, " if self.directions == 2 else "reverse, " if self.reverse else ""
        parts = self._layers[0][0][1]
        projected = f", projected to {self.output_size}" if "projection" in parts else ""
        projected += ", peepholes" if "peepholes" in parts else ""
        return (
            f"QuantLSTM({self.input_size}, {self.hidden_size}{projected}, layers={self.num_layers}, {kind}"
            f"x {self.format('x').bits} bits, h {self.format('h').bits} bits, c {self.format('c').bits} bits, "
            f"weights {self._layers[0][0][1]['weight_bits']} bits)"
        )

    def __call__(
        self, x: Any, h0: Any = None, c0: Any = None, *, lengths: Any = None, out: Any = None, stream: Any = None
    ) -> tuple[Any, Any, Any]:
        """Run all steps.

        Args:
            x: [T, B, C] ([B, T, C] if batch_first): float32, float16 or bfloat16, or codes (int8 or int16 of
                ``format("x")``), on the CPU or a CUDA device; any strides.
            h0, c0: [layers * directions, B, S] and [layers * directions, B, H] on x's device, S as below: floats, or
                codes of ``format("h", layer)`` and ``format("c", layer)``; None for zeros.
            lengths: int32 [B] on x's device, each row's number of steps, or None. Beyond them y is 0 and the states
                stay.
            out: where to write y; any strides, floats or codes, no memory in common with x, h0 or c0. It is returned.
            stream: CUDA stream to run on; the caller's library's current one by default.

        Returns:
            y [T, B, directions * S] ([B, T, directions * S] if batch_first) and the last h [layers * directions, B, S]
            and c [layers * directions, B, H], with S the ``output_size``: P with a projection, else H. They are in x's
            library and on its device: floats of x's dtype, or codes if x is codes.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected. On a CUDA
                device values are not looked at: a NaN counts as 0 there.
            CudaError: a CUDA call failed.
        """
        given = _arrays.shape_of(x, "lstm: x")
        if len(given) != 3:
            axes = "[B, T, C]" if self.batch_first else "[T, B, C]"
            raise _core.QcoreValueError(f"lstm: x has shape {list(given)}, expected {axes} with C = {self.input_size}")
        first, second, _ = given
        batch = first if self.batch_first else second
        shape = (first, second, self.directions * self._sizes[1])
        if type(x) is np.ndarray and x.dtype in _PLAIN and h0 is c0 is lengths is out is stream is None:
            return self._plain_run(x, None, None, shape, batch)
        return self._run(x, h0, c0, shape, batch, None, checked_lengths("lstm", lengths), out, stream)

    forward = __call__

    def step(
        self, x: Any, state: Any = None, *, reset: Any = None, out: Any = None, stream: Any = None
    ) -> tuple[Any, tuple[Any, Any]]:
        """Run one step of streaming; only without a backward direction.

        Args:
            x: [B, C] as for a call.
            state: what the last step returned; None at first.
            reset: bool [B], rows whose states start anew, or None.
            out, stream: as for a call.

        Returns:
            y [B, S], and the state, (h, c): codes of ``format("h", layer)`` and ``format("c", layer)``, [layers, B, S]
            and [layers, B, H], to be passed to the next step.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; or the LSTM is
                bidirectional or reversed.
        """
        self._check_streaming()
        given = _arrays.shape_of(x, "lstm: x")
        if len(given) != 2:
            raise _core.QcoreValueError(f"lstm: x has shape {list(given)}, expected [B, C] with C = {self.input_size}")
        batch = given[0]
        if (
            type(x) is np.ndarray
            and x.dtype in _PLAIN
            and reset is out is stream is None
            and self._is_plain(state, batch)
        ):
            y, h, c = self._plain_run(x, state[0], state[1], (batch, self._sizes[1]), batch)
            return y, (h, c)
        h, c = self._checked_state(state, batch)
        if reset is not None:
            mask = checked_mask("lstm", reset, batch)
            if h is not None:
                zeros = [self.format("h", layer).zero_point for layer in range(self.num_layers)]
                h, c = restarted(h, mask, zeros), restarted(c, mask, [0] * self.num_layers)
        y, h, c = self._run(x, h, c, (batch, self.output_size), batch, self._state_dtypes, None, out, stream)
        return y, (h, c)

    def _plain_run(self, x: Any, h0: Any, c0: Any, shape: tuple[int, ...], batch: int) -> tuple[Any, Any, Any]:
        """Run on NumPy's arrays without options: the general way takes most of the time of a small call.

        The last states are codes after states, as x otherwise.
        """
        _, state_size, size, rows = self._sizes
        floating = x.dtype.kind == "f"
        h_kind, c_kind = (x.dtype, x.dtype) if floating and h0 is None else self._state_kinds
        y = _arrays.empty_numpy(shape, x.dtype if floating else self._state_kinds[0], "lstm")
        h = _arrays.empty_numpy((rows, batch, state_size), h_kind, "lstm")
        c = _arrays.empty_numpy((rows, batch, size), c_kind, "lstm")
        self._stack.run(x, h0, c0, y, h, c, self.batch_first and len(shape) == 3, None, 0)
        return y, h, c

    def _run(
        self,
        x: Any,
        h0: Any,
        c0: Any,
        shape: Any,
        batch: int,
        state_dtypes: list[str] | None,
        lengths: Any,
        out: Any,
        stream: Any,
    ) -> tuple[Any, Any, Any]:
        backend = _arrays.backend_of(x, "lstm: x")
        address = backend.stream(x) if stream is None else _arrays.stream_address(stream, backend, x, "lstm: stream")
        floating = _arrays.dtype_of(x, "lstm: x") in _arrays.FLOATING
        rows = self.num_layers * self.directions
        sizes = [self._state_size(name) for name in self.cell_type.states]
        y_dtype = None if floating else self._state_dtypes[0]
        y = backend.empty(x, shape, y_dtype, "lstm: x") if out is None else out
        dtypes: list[str | None] = [None, None] if floating else [*self._state_dtypes]
        if state_dtypes is not None:
            dtypes = [*state_dtypes]
        h, c = (
            backend.empty(x, (rows, batch, size), dtype, "lstm: x") for size, dtype in zip(sizes, dtypes, strict=True)
        )
        self._stack.run(
            backend.readable(x, "lstm: x"),
            None if h0 is None else _arrays.readable(h0, "lstm: h0"),
            None if c0 is None else _arrays.readable(c0, "lstm: c0"),
            _arrays.backend_of(y, "lstm: out").writable(y, "lstm: out"),
            backend.writable(h, "lstm: h_last"),
            backend.writable(c, "lstm: c_last"),
            self.batch_first and len(shape) == 3,
            lengths,
            address,
        )
        return (backend.result(y, x) if out is None else out), backend.result(h, x), backend.result(c, x)

    def _is_plain(self, state: Any, batch: int) -> bool:
        """Return whether a state is NumPy's arrays as the last step returned them."""
        if type(state) is not tuple or len(state) != 2:
            return False
        (h, c), (h_kind, c_kind) = state, self._state_kinds
        _, state_size, size, rows = self._sizes
        return (
            type(h) is type(c) is np.ndarray
            and (h.dtype, c.dtype) == (h_kind, c_kind)
            and (h.shape, c.shape) == ((rows, batch, state_size), (rows, batch, size))
        )

    def _checked_state(self, state: Any, batch: int) -> tuple[Any, Any]:
        if state is None:
            return None, None
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise _core.QcoreTypeError(f"lstm: state is a {type(state).__name__}, expected (h, c) of the last step")
        for name, array, dtype in zip(("h", "c"), state, self._state_dtypes, strict=True):
            expected = (self.num_layers, batch, self._state_size(name))
            where = f"lstm: {name} of state"
            shape, given = tuple(_arrays.shape_of(array, where)), _arrays.dtype_of(array, where)
            if shape != expected or given != dtype:
                raise _core.QcoreValueError(
                    f"{where} is {given} {list(shape)}, expected {dtype} {list(expected)}, as the last step returned it"
                )
        return state[0], state[1]
