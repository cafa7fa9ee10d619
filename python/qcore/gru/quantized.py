"""A quantised GRU and its calls."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from qcore import _arrays, _core
from qcore.gru.calibration import Calibrator
from qcore.gru.formats import TENSORS, Config, Format
from qcore.gru.weights import GruWeights

Layer = list[tuple[_core.QuantizedGru, dict[str, Any]]]


class QuantGRU:
    """Layers of fixed-point GRUs; immutable.

    Made by :meth:`from_torch` or :meth:`Calibrator.finish`. Everything between the rounding of a float input and of a
    float result is integer arithmetic, the same on every processor: docs/gru.md.
    """

    def __init__(self, layers: list[Layer], config: Config, *, batch_first: bool = False) -> None:
        self._layers = layers
        self.config = config
        self.batch_first = batch_first

    @classmethod
    def from_torch(
        cls, gru: Any, data: Any, bits: int = 8, *, method: str = "minmax", config: Config | None = None
    ) -> QuantGRU:
        """Calibrate and quantise a ``torch.nn.GRU``.

        Args:
            gru: the module.
            data: one batch of inputs as the module takes them, or a list of batches.
            bits: 8 or 16; ignored if ``config`` is given.
            method: of calibration, see :class:`Calibrator`.
        """
        calibrator = Calibrator(GruWeights.from_torch(gru), method)
        for batch in data if isinstance(data, (list, tuple)) else [data]:
            calibrator.observe(batch.detach().cpu().double().numpy() if hasattr(batch, "detach") else batch)
        return calibrator.finish(config or Config(bits=bits))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, config and the tables' hashes as safetensors. The file appears whole or not at all."""
        from qcore.gru.files import save_gru

        save_gru(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantGRU:
        """A GRU that :meth:`save` wrote: the same integers.

        Raises:
            QcoreValueError, QcoreTypeError: the file is not one, or was damaged: naming what is missing or wrong.
            OSError: it can't be read.
        """
        from qcore.gru.files import load_gru

        return load_gru(path)

    @property
    def input_size(self) -> int:
        """C."""
        return int(self._layers[0][0][1]["sizes"][0])

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self._layers[0][0][1]["sizes"][1])

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def directions(self) -> int:
        """1, or 2 if it is bidirectional."""
        return len(self._layers[0])

    def format(self, name: str, layer: int = 0, direction: int = 0) -> Format:
        """The format of a tensor of :data:`qcore.gru.formats.TENSORS`."""
        bits, signed, exponent, zero = self._layers[layer][direction][1]["formats"][TENSORS.index(name)]
        return Format(int(bits), bool(signed), int(exponent), int(zero))

    def __repr__(self) -> str:
        kind = "bidirectional, " if self.directions == 2 else ""
        return (
            f"QuantGRU({self.input_size}, {self.hidden_size}, layers={self.num_layers}, {kind}"
            f"x {self.format('x').bits} bits, h {self.format('h').bits} bits, "
            f"weights {self._layers[0][0][1]['weight_bits']} bits, {self.config.pipeline})"
        )

    def __call__(self, x: Any, h0: Any = None, *, lengths: Any = None) -> tuple[Any, Any]:
        """Run all steps.

        Args:
            x: [T, B, C] ([B, T, C] if batch_first): float32, float16 or bfloat16, or codes (int8 or int16 of
                ``format("x")``), on the CPU.
            h0: [layers * directions, B, H] like x: floats, or codes of ``format("h", layer)``; None for zeros.
            lengths: int32 [B], each row's number of steps, or None. Beyond them y is 0 and the state stays.

        Returns:
            y [T, B, directions * H] and the last states [layers * directions, B, H], in x's library; floats of x's
            dtype, or codes of ``format("h")`` if x were codes.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        """
        family = _arrays.family(x, "gru: x")
        inputs, floats = self._codes_of(x, "x", 3)
        if self.batch_first:
            inputs = inputs.transpose(1, 0, 2)
        steps, batch = inputs.shape[:2]
        size = self.hidden_size
        states = None if h0 is None else self._states_of(h0, batch, floats)
        counts = None if lengths is None else np.ascontiguousarray(lengths, np.int32)
        last = np.empty((self.num_layers * self.directions, batch, size), self.format("h").dtype)
        for number, layer in enumerate(self._layers):
            outputs = np.empty((steps, batch, self.directions * size), self.format("h", number).dtype)
            for side, (core, _) in enumerate(layer):
                row = number * self.directions + side
                out = outputs[:, :, side * size : (side + 1) * size]
                core.run(inputs, None if states is None else states[row], out, last[row], side == 1, counts, None, 0)
            inputs = outputs
        y = inputs.transpose(1, 0, 2) if self.batch_first else inputs
        return self._result(y, x, family, floats, [self.num_layers - 1]), self._result(
            last, x, family, floats, range(self.num_layers)
        )

    def step(self, x: Any, state: Any = None, *, reset: Any = None) -> tuple[Any, Any]:
        """One step of streaming; only without a backward direction.

        Args:
            x: [B, C] as for a call.
            state: what the last step returned; None at first.
            reset: bool [B], rows whose state starts anew, or None.

        Returns:
            y [B, H], and the state: codes [layers, B, H], to be passed to the next step.
        """
        if self.directions == 2:
            raise _core.QcoreValueError("gru: step() on a bidirectional GRU, which needs the whole sequence: call it")
        family = _arrays.family(x, "gru: x")
        inputs, floats = self._codes_of(x, "x", 2)
        batch = inputs.shape[0]
        expected = (self.num_layers, batch, self.hidden_size)
        states = self._zeros(batch) if state is None else np.array(state)
        if states.shape != expected or states.dtype != self.format("h").dtype:
            raise _core.QcoreValueError(
                f"gru: state is {states.dtype} {list(states.shape)}, expected {self.format('h').dtype} "
                f"{list(expected)}, as the last step returned it"
            )
        if reset is not None:
            mask = np.asarray(reset)
            if mask.dtype != bool or mask.shape != (batch,):
                raise _core.QcoreValueError(f"gru: reset is {mask.dtype} {list(mask.shape)}, expected bool [{batch}]")
            states[:, mask] = self._zeros(1)
        inputs = inputs[None]
        for number, layer in enumerate(self._layers):
            out = np.empty((1, batch, self.hidden_size), self.format("h", number).dtype)
            layer[0][0].run(inputs, states[number], out, None, False, None, None, 0)
            states[number] = out[0]
            inputs = out
        return self._result(inputs[0], x, family, floats, [self.num_layers - 1]), states

    def _zeros(self, batch: int) -> Any:
        zeros = np.empty((self.num_layers, batch, self.hidden_size), self.format("h").dtype)
        for number in range(self.num_layers):
            zeros[number] = self.format("h", number).zero_point
        return zeros

    def _codes_of(self, x: Any, name: str, rank: int) -> tuple[Any, bool]:
        """(codes as a NumPy array, whether x was floats)."""
        form = self.format("x")
        if len(x.shape) != rank or x.shape[-1] != self.input_size:
            axes = {3: "[B, T, C]" if self.batch_first else "[T, B, C]", 2: "[B, C]"}[rank]
            raise _core.QcoreValueError(
                f"gru: {name} has shape {list(x.shape)}, expected {axes} with C = {self.input_size}"
            )
        readable = _arrays.readable(x, f"gru: {name}")
        if _arrays.dtype_name(x.dtype) not in _arrays.FLOATING:
            return np.from_dlpack(x), False
        codes = np.empty(tuple(x.shape), form.dtype)
        _core.quantize_fixed(readable, form.row(), codes)
        return codes, True

    def _states_of(self, h0: Any, batch: int, floats: bool) -> Any:
        expected = (self.num_layers * self.directions, batch, self.hidden_size)
        if tuple(h0.shape) != expected:
            raise _core.QcoreValueError(f"gru: h0 has shape {list(h0.shape)}, expected {list(expected)}")
        if not floats:
            return np.from_dlpack(h0)
        states = np.empty(expected, self.format("h").dtype)
        for row in range(expected[0]):
            form = self.format("h", row // self.directions)
            _core.quantize_fixed(_arrays.readable(h0[row], "gru: h0"), form.row(), states[row])
        return states

    def _result(self, codes: Any, x: Any, family: Any, floats: bool, layers: Any) -> Any:
        if not floats:
            out = family.empty(x, codes.shape, str(codes.dtype))
            np.from_dlpack(family.writable(out, "gru: out"))[...] = codes
            return family.result(out, x)
        out = family.empty(x, codes.shape, None)
        target = family.writable(out, "gru: out")
        if len(layers) == 1:
            _core.dequantize_fixed(codes, self.format("h", layers[0]).row(), target)
        else:
            for row in range(len(codes)):
                form = self.format("h", row // self.directions)
                _core.dequantize_fixed(codes[row], form.row(), target[row])
        return family.result(out, x)
