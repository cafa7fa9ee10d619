"""Reads the versions of the packages that a model's result depends on."""

from __future__ import annotations

import importlib.metadata

_PACKAGES = ("qcore", "torch", "transformers", "tokenizers", "numpy")


def versions() -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
