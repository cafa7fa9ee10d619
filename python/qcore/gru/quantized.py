"""A quantized GRU: made from a float one, saved, measured and exported."""

from __future__ import annotations

import os
from typing import Any

from qcore._options import RangeMethod, option_names
from qcore.gru.core import GruCore
from qcore.gru.export.header import export_gru
from qcore.gru.files.quantized import read_gru, save_gru
from qcore.gru.formats import Config
from qcore.gru.golden import write_golden
from qcore.gru.observation import Observer
from qcore.gru.report import Report, make_report
from qcore.gru.weights import GruWeights


class QuantGRU(GruCore):
    """Layers of fixed-point GRUs; immutable.

    Made by :meth:`from_torch`, :meth:`load` or :meth:`Calibrator.finish`. Everything between the rounding of a float
    input and of a float result is integer arithmetic, the same on every processor: docs/gru.md.
    """

    @classmethod
    @option_names("QuantGRU.from_torch", deprecated={"data": "samples"})
    def from_torch(
        cls, gru: Any, samples: Any, bits: int = 8, *, method: RangeMethod = "mse", config: Config | None = None
    ) -> QuantGRU:
        """Calibrate and quantize a ``torch.nn.GRU``.

        Args:
            gru: the module.
            samples: one batch of inputs as the module takes them, or a list of batches.
            bits: 8 or 16; ignored if ``config`` is given.
            method: of calibration, see :class:`Calibrator`.
            config: widths, pipeline and rules, instead of ``bits``.

        Raises:
            QcoreValueError, QcoreTypeError: no GRU, samples of another shape, or an option is impossible.
        """
        observer = Observer(GruWeights.from_torch(gru), method)
        for batch in samples if isinstance(samples, (list, tuple)) else [samples]:
            observer.observe(batch.detach().cpu().double().numpy() if hasattr(batch, "detach") else batch)
        return cls._from_observer(observer, config or Config(bits=bits))

    @classmethod
    def _from_observer(cls, observer: Observer, config: Config) -> QuantGRU:
        """Make the GRU of the ranges that an observer has seen; errors as for :meth:`Calibrator.finish`."""
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
        save_gru(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantGRU:
        """Make a GRU that :meth:`save` wrote: the same integers.

        Args:
            path: the file.

        Raises:
            QcoreValueError, QcoreTypeError: the file is not one, or was damaged: naming what is missing or wrong.
            OSError: it can't be read.
        """
        layers, config, order = read_gru(path)
        return cls(layers, config, **order)

    def golden(self, path: str | os.PathLike[str], x: Any, h0: Any = None) -> None:
        """Write inputs, parameters, every intermediate of every step and outputs, for checks of other implementations.

        ``help(qcore.gru.golden)`` has the layout, :func:`qcore.gru.verify_golden` checks such a file in NumPy integers.

        Args:
            path: a safetensors file; it appears whole or not at all.
            x: as for a call, on the CPU: numbers or codes, at least one step and one row.
            h0: [layers * directions, B, H], numbers or codes, or None for zeros.

        Raises:
            QcoreValueError, QcoreTypeError: another shape, codes beyond their format, or no numbers.
            OSError: the file can't be written.
        """
        write_golden(self, path, x, h0)

    def report(self, x: Any, h0: Any = None, weights: GruWeights | None = None) -> Report:
        """Measure clip rate, bits in use and SQNR against float64, of every tensor and step.

        Args:
            x, h0: a batch as for a call, on the CPU: numbers or codes.
            weights: the float weights; may be left out where :meth:`Calibrator.finish` made this GRU.

        Returns:
            Rows, with ``table()`` for a rich console, ``to_json()`` and ``plot(path)``.

        Raises:
            QcoreValueError, QcoreTypeError: there are no weights, or of other sizes; x or h0 has another shape.
        """
        return make_report(self, x, h0, weights)

    def export_c(self, path: str | os.PathLike[str], name: str = "gru", x: Any = None) -> None:
        """Write a C99 header that runs this GRU step by step, and beside it ``..._selftest.c``, which tests the header.

        The header needs nothing but <stdint.h>: integers only, no allocation, the same numbers as a call. It gives no
        warning under ``gcc -std=c99 -Wall -Wextra -pedantic``; its comment has the sizes. With
        ``Config(tables="interp")`` it has 513 knots for each gate instead of a table of 65,536.

        Args:
            path: a name that ends in .h; both files appear whole or not at all.
            name: what all names in the header begin with.
            x: inputs of the self-test, as for a call; random codes by default.

        Raises:
            QcoreValueError, QcoreTypeError: it is bidirectional, or the name is not a C identifier.
            OSError: a file can't be written.
        """
        export_gru(self, path, name, x)
