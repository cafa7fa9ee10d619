"""Provides what plots share: matplotlib when it is needed, names of pictures, and pictures written atomically."""

from __future__ import annotations

import importlib
import io
import os
from pathlib import Path
from typing import Any

from qcore import _core, _files

FORMATS = (".png", ".svg", ".pdf")
INCHES, DPI = (10.0, 20.0 / 3.0), 120  # 1200 x 800
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "qcore",
}


def module(name: str, where: str) -> Any:
    """matplotlib's, or an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _core.QcoreValueError(
            f"{where}: plots need matplotlib: pip install 'libqcore[plot]' ({error})"
        ) from error


def ending(path: str | os.PathLike[str], where: str) -> str:
    """Return the ending of a picture's name, or raise if no such picture can be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise _core.QcoreValueError(
            f"{where}: path is {os.fspath(path)!r}, expected a name that ends in {', '.join(FORMATS)}"
        )
    module("matplotlib", where)
    return suffix


def new_figure(where: str) -> Any:
    """Make a figure for Agg, whatever the program has chosen."""
    figure = module("matplotlib.figure", where).Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    module("matplotlib.backends.backend_agg", where).FigureCanvasAgg(figure)
    return figure


def write(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a picture: the same bytes for the same figure, without a date."""
    suffix = Path(path).suffix.lower()
    image = io.BytesIO()
    metadata = {} if suffix == ".png" else {"Date" if suffix == ".svg" else "CreationDate": None}
    figure.savefig(image, format=suffix[1:], dpi=DPI, metadata=metadata)
    _files.write_whole(Path(path), image.getvalue())
