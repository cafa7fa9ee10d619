"""A look-up table, saved, exported and drawn."""

from __future__ import annotations

import os
from typing import Any

from qcore.lut.core import TableCore
from qcore.lut.export import export_c, export_hex
from qcore.lut.files import read_table, save_table
from qcore.lut.plot import plot_table


class Table(TableCore):
    """Computes a piecewise-linear function on cut points; immutable, callable on arrays of any library.

    :func:`qcore.lut.table` and :func:`qcore.lut.fit` make tables; :meth:`Table.from_parts` takes one from elsewhere.

    Attributes:
        name: of the function; "custom" if it has none.
        report: the :class:`FitReport` of a fitted table, else None.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.cuts, self.values, self.range_reduction, self.name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as safetensors: float32 ``cuts``, ``values``, and metadata.

        Args:
            path: the file, which appears whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        save_table(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Table:
        """Make a table that :meth:`save` wrote.

        Args:
            path: the file.

        Raises:
            QcoreValueError: the file is not one, naming what is missing or wrong.
            OSError: it can't be read.
        """
        return cls.from_parts(**read_table(path))

    def export_c(self, path: str | os.PathLike[str], *, name: str | None = None) -> None:
        """Write a C99 header with the table and its evaluation in float, of the same bits as here.

        Args:
            path: the file, which appears whole or not at all.
            name: of the function in C; the table's name by default.

        Raises:
            QcoreValueError: the name is no C identifier.
            OSError: the file can't be written.
        """
        export_c(self, path, name=name)

    def export_hex(self, path: str | os.PathLike[str]) -> None:
        """Write the values' bit patterns for Verilog's ``$readmemh``, one per line; cuts and scales as comments.

        Args:
            path: the file, which appears whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        export_hex(self, path)

    def plot(self, path: str | os.PathLike[str] | None = None, *, function: Any = None) -> Any:
        """Draw function, table and error over x; needs matplotlib (``pip install 'libqcore[plot]'``).

        Args:
            path: .png, .svg or .pdf to write; None writes nothing.
            function: what the table is compared with: a name of :func:`qcore.lut.names` or a callable of float64
                arrays; by default the function of the table's name.

        Returns:
            matplotlib's Figure.

        Raises:
            QcoreValueError, QcoreTypeError: another ending, another function, or matplotlib is not installed.
            OSError: the file can't be written.
        """
        return plot_table(self, path, function=function)


def _restore(cuts: Any, values: Any, range_reduction: str, name: str) -> Table:
    return Table.from_parts(cuts, values, range_reduction=range_reduction, name=name)
