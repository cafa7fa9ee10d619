"""A quantized LSTM: made from a float one, saved and loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qcore import _files
from qcore._options import RangeMethod
from qcore._recurrent.files import FileKind
from qcore.lstm.core import LstmCore, make
from qcore.lstm.formats import TENSORS, Config
from qcore.lstm.observation import Observer
from qcore.lstm.weights import LstmWeights

_VERSIONS = ("qcore.lstm.1", "qcore.lstm.2")
"""Version 1 has no reversed LSTMs; other files are the same but for their version."""
_TABLES = ("i", "f", "g", "o", "c_tanh")
FILES = FileKind("lstm", _VERSIONS[-1], _VERSIONS, TENSORS, 4, ("b",), _TABLES, Config, make)


class QuantLSTM(LstmCore):
    """Layers of fixed-point LSTMs; immutable.

    Made by :meth:`from_torch`, :meth:`load` or :meth:`Calibrator.finish`. Everything between the rounding of a float
    input and of a float result is integer arithmetic, the same on every processor: docs/recurrent/lstm.md.
    """

    @classmethod
    def from_torch(
        cls, lstm: Any, samples: Any, bits: int = 8, *, method: RangeMethod = "mse", config: Config | None = None
    ) -> QuantLSTM:
        """Calibrate and quantize a ``torch.nn.LSTM``.

        Args:
            lstm: the module, without a projection.
            samples: one batch of inputs as the module takes them, or a list of batches.
            bits: 8 or 16; ignored if ``config`` is given.
            method: of calibration, see :class:`Calibrator`.
            config: widths and rules, instead of ``bits``.

        Raises:
            QcoreValueError, QcoreTypeError: no LSTM, samples of another shape, or an option is impossible.
        """
        observer = Observer(LstmWeights.from_torch(lstm), method)
        for batch in samples if isinstance(samples, (list, tuple)) else [samples]:
            observer.observe(batch.detach().cpu().double().numpy() if hasattr(batch, "detach") else batch)
        return cls._from_observer(observer, config or Config(bits=bits))

    @classmethod
    def _from_observer(cls, observer: Observer, config: Config) -> QuantLSTM:
        """Make the LSTM of the ranges that an observer has seen; errors as for :meth:`Calibrator.finish`."""
        return cls(observer._quantize_layers(config), config, **observer._order)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, config and the tables' hashes as safetensors.

        Args:
            path: the file, which appears whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        _files.write_whole(Path(path), FILES.to_bytes(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantLSTM:
        """Make an LSTM that :meth:`save` wrote: the same integers.

        Args:
            path: the file.

        Raises:
            QcoreValueError, QcoreTypeError: the file is not one, or was damaged: naming what is missing or wrong.
            OSError: it can't be read.
        """
        layers, config, order = FILES.from_bytes(Path(path).read_bytes(), f"lstm: {os.fspath(path)}")
        return cls(layers, config, **order)
