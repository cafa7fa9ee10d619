"""Runs `python -m benchmarks`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qcore.cli import run_app

from .command import app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. Expected failures are one line on stderr, never a traceback."""
    return run_app(app, "benchmarks", arguments)


if __name__ == "__main__":
    sys.exit(main())
