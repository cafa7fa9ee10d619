"""A quantized LSTM: made from a float one, saved and measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qcore import _files
from qcore._options import RangeMethod, option_names
from qcore._recurrent.export.sizes import ExportSizes
from qcore._recurrent.files import FileKind
from qcore._recurrent.formats import TableKind
from qcore._recurrent.golden import write_golden
from qcore._recurrent.report import Report, make_report
from qcore.lstm.core import LstmCore, make
from qcore.lstm.export import export_lstm
from qcore.lstm.formats import TENSORS, Config
from qcore.lstm.observation import Observer
from qcore.lstm.weights import LstmWeights

_VERSIONS = ("qcore.lstm.1", "qcore.lstm.2")
"""Version 1 has no reversed LSTMs; other files are the same but for their version."""
_TABLES = ("i", "f", "g", "o", "c_tanh")
FILES = FileKind(
    "lstm",
    _VERSIONS[-1],
    _VERSIONS,
    TENSORS,
    4,
    ("b",),
    _TABLES,
    Config,
    make,
    optional={"projection": ("m",), "peepholes": ()},
)


class QuantLSTM(LstmCore):
    """Runs layers of fixed-point LSTMs; immutable.

    Made by :meth:`from_torch`, :meth:`load` or :meth:`Calibrator.finish`. Everything between the rounding of a float
    input and of a float result is integer arithmetic, the same on every processor: docs/recurrent/lstm.md.
    """

    @classmethod
    @option_names("QuantLSTM.from_torch")
    def from_torch(
        cls, lstm: Any, samples: Any, bits: int = 8, *, method: RangeMethod = "mse", config: Config | None = None
    ) -> QuantLSTM:
        """Calibrate and quantize a ``torch.nn.LSTM``.

        Args:
            lstm: the module.
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
        made = cls(observer._quantize_layers(config), config, **observer._order)
        made.float_weights = observer.weights
        return made

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

    def golden(self, path: str | os.PathLike[str], x: Any, h0: Any = None, c0: Any = None) -> None:
        """Write inputs, parameters, every intermediate of every step and outputs, for checks of other implementations.

        ``help(qcore.lstm.golden)`` has the layout, :func:`qcore.lstm.verify_golden` checks such a file in NumPy
        integers.

        Args:
            path: a safetensors file; it appears whole or not at all.
            x: as for a call: numbers or codes, at least one step and one row.
            h0, c0: as for a call, numbers or codes, or None for zeros.

        Raises:
            QcoreValueError, QcoreTypeError: another shape, codes beyond their format, or no numbers.
            OSError: the file can't be written.
        """
        write_golden(self, path, x, [h0, c0])

    def report(self, x: Any, h0: Any = None, c0: Any = None, weights: LstmWeights | None = None) -> Report:
        """Measure clip rate, bits in use and SQNR against float64, of every tensor and step.

        Args:
            x, h0, c0: a batch as for a call: numbers or codes.
            weights: the float weights; may be left out where :meth:`Calibrator.finish` made this LSTM.

        Returns:
            Rows, with ``table()`` for a rich console, ``to_json()`` and ``plot(path)``.

        Raises:
            QcoreValueError, QcoreTypeError: there are no weights, or of other sizes; x, h0 or c0 has another shape.
        """
        return make_report(self, x, [h0, c0], weights)

    def export_c(
        self, path: str | os.PathLike[str], name: str = "lstm", x: Any = None, *, tables: TableKind = "interp"
    ) -> ExportSizes:
        """Write a C99 header that runs this LSTM step by step, and ``..._selftest.c``, which tests it, beside it.

        The header needs no library: integers only, no allocation, sizes known when it is compiled, and constants that a
        linker puts into flash. Where Arm has DSP instructions, products take them. It gives
        no warning under ``gcc -std=c99 -Wall -Wextra -pedantic``.

        Args:
            path: a name that ends in .h; both files appear whole or not at all.
            name: what all names in the header begin with.
            x: inputs of the self-test, as for a call; random codes by default.
            tables: "interp" for 513 knots where a table has an entry for each of up to 65,536 codes, which few
                microcontrollers hold, or "exact". The header has the numbers of a call of ``with_tables(tables)``.

        Returns:
            Bytes of flash and RAM, and multiply-adds per step.

        Raises:
            QcoreValueError, QcoreTypeError: it is bidirectional, the name is not a C identifier, or another option is
                impossible.
            OSError: a file can't be written.
        """
        return export_lstm(self.with_tables(tables), path, name, x)
