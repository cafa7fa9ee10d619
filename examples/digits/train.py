"""Train the model that `qcore demo` ships, and write it beside the demo with its held-out test images.

    python examples/digits/train.py

The data are the handwritten digits bundled with scikit-learn (1797 images of 8x8 pixels, 17 gray levels). The model is
small on purpose, but has one of everything: two convolutions, a linear projection, a GRU that reads the feature map
row by row, and a linear head. Every source of randomness is seeded and training runs on one thread, so that a second
run on the same machine writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import safetensors.numpy
import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

SEED = 0
TEST_FRACTION = 0.3
EPOCHS = 45
BATCH = 64
PEAK_LEARNING_RATE = 4e-3
WEIGHT_DECAY = 2e-2
LARGEST_PIXEL = 16.0

DEFAULT_OUTPUT = Path(__file__).resolve().parents[2] / "python" / "qcore" / "demo" / "digits.safetensors"


class DigitsModel(nn.Module):
    """[B, 1, 8, 8] images -> [B, 10] logits. The sizes are multiples of 32, the demo's quantization block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=1)
        self.row = nn.Linear(32 * 8, 64)
        self.gru = nn.GRU(64, 96, batch_first=True)
        self.hidden = nn.Linear(96, 64)
        self.logits = nn.Linear(64, 10)
        self.dropout = nn.Dropout(0.2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(images))
        x = functional.relu(self.conv2(x))
        x = x.permute(0, 2, 3, 1).flatten(2)  # [B, 8 rows, 8 columns x 32 channels]: one time step per image row
        x = functional.relu(self.row(self.dropout(x)))
        x = self.gru(x)[0][:, -1]
        x = functional.relu(self.hidden(self.dropout(x)))
        logits: torch.Tensor = self.logits(x)
        return logits


def load_split() -> tuple[torch.Tensor, torch.Tensor, np.ndarray, np.ndarray]:
    """Training images [M, 1, 8, 8] fp32 in [0, 1] and labels, then test images [M, 8, 8] uint8 in 0..16 and labels."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    split = train_test_split(
        images, labels.astype(np.uint8), test_size=TEST_FRACTION, random_state=SEED, stratify=labels
    )
    train_images, test_images, train_labels, test_labels = split
    train_x = torch.from_numpy(train_images).float().unsqueeze(1) / LARGEST_PIXEL
    return train_x, torch.from_numpy(train_labels).long(), test_images, test_labels


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Move each image by -1, 0 or +1 pixel on both axes, filling with background."""
    padded = functional.pad(images, (1, 1, 1, 1))
    offset = torch.randint(0, 3, (len(images), 2), generator=generator)
    span = torch.arange(8)
    rows = (offset[:, :1] + span)[:, :, None]
    columns = (offset[:, 1:] + span)[:, None, :]
    which = torch.arange(len(images))[:, None, None]
    return padded[which, 0, rows, columns].unsqueeze(1)


def train(images: torch.Tensor, labels: torch.Tensor) -> DigitsModel:
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = DigitsModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=EPOCHS * batches)
    for epoch in range(EPOCHS):
        total = 0.0
        for index in torch.randperm(len(images), generator=generator)[: batches * BATCH].split(BATCH):
            logits = model(shifted(images[index], generator))
            loss = functional.cross_entropy(logits, labels[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if (epoch + 1) % 5 == 0:
            print(f"epoch {epoch + 1:3d}  mean loss {total / batches:.4f}", flush=True)
    return model.eval()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)  # mkstemp's files are private
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digits model shipped with qcore.")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="file to write (default: inside qcore)")
    output: Path = parser.parse_args().output

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the order of sums then does not depend on the number of cores
    started = time.perf_counter()

    train_x, train_y, test_images, test_labels = load_split()
    model = train(train_x, train_y)
    with torch.inference_mode():
        logits = model(torch.from_numpy(test_images).float().unsqueeze(1) / LARGEST_PIXEL).numpy()
    correct = int((logits.argmax(axis=1) == test_labels).sum())
    best_two = np.sort(logits, axis=1)[:, -2:]
    smallest_margin = float((best_two[:, 1] - best_two[:, 0]).min())

    tensors = {name: np.ascontiguousarray(value.numpy()) for name, value in model.state_dict().items()}
    tensors |= {"test.images": np.ascontiguousarray(test_images), "test.labels": np.ascontiguousarray(test_labels)}
    description = {
        "format_version": 1,
        "data": "scikit-learn load_digits",
        "split": f"train_test_split(test_size={TEST_FRACTION}, random_state={SEED}, stratify=labels)",
        "seed": SEED,
        "epochs": EPOCHS,
        "largest_pixel": int(LARGEST_PIXEL),
        "float_correct": correct,
        "float_accuracy": round(correct / len(test_labels), 6),
        "trained_with": f"torch {torch.__version__.split('+')[0]}, scikit-learn {sklearn.__version__}",
    }
    # One metadata entry: safetensors writes several in random order, and the file would differ from run to run.
    metadata = {"digits": json.dumps(description, sort_keys=True)}
    write_atomically(output, safetensors.numpy.save(tensors, metadata=metadata))

    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {correct}/{len(test_labels)} test images right ({correct / len(test_labels):.2%})")
    print(f"smallest margin between the two best logits: {smallest_margin:.2g}")
    print(f"wrote {output.name} ({output.stat().st_size} bytes) in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
