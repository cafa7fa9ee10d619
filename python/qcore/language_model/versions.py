"""Reads the versions of the packages that a model's result depends on."""

from __future__ import annotations

import importlib.metadata

# The distribution of each package.
_DISTRIBUTIONS = {
    "qcore": "libqcore",
    "torch": "torch",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "numpy": "numpy",
}


def versions() -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package, distribution in _DISTRIBUTIONS.items():
        try:
            found[package] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
