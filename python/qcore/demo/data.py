"""The shipped checkpoint: trained weights and the test images that training never saw."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import qcore

CHECKPOINT = Path(__file__).with_name("digits.safetensors")
FORMAT_VERSION = 1

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Digits:
    """Weights by their name in training, test images [M, 1, 8, 8] in 0..1 and labels [M]."""

    weights: dict[str, Floats]
    images: Floats
    labels: NDArray[np.uint8]
    float_correct: int  # test images that the model got right when it was trained


def load(path: Path = CHECKPOINT) -> Digits:
    """Read the checkpoint that `examples/digits/train.py` writes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {}).get("digits", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise qcore.QcoreError(f"demo: {path} is not a readable safetensors file: {error}") from error
    if description.get("format_version") != FORMAT_VERSION:
        found = description.get("format_version")
        raise qcore.QcoreError(f"demo: {path} has digits format version {found}, expected {FORMAT_VERSION}")

    pixels = tensors.pop("test.images").astype(np.float32)
    labels = tensors.pop("test.labels")
    images = pixels[:, None] / np.float32(description["largest_pixel"])
    return Digits(weights=tensors, images=images, labels=labels, float_correct=description["float_correct"])
