"""Train a torch GRU that reads handwriting from a moving strip, quantize it, and stream it one column at a time.

    pip install torch scikit-learn libqcore
    python examples/streaming_gru/stream.py

The data are the handwritten digits that come with scikit-learn (1797 images of 8x8 pixels). They are laid side by
side on a strip that passes under a scanner: a time step is one column of 8 pixels, and after the eighth column of a
digit the model says which it was. It is not told where the strip began: the state is never reset.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from qcore.gru import Calibrator, Config, GruWeights, QuantGRU

SEED = 0
HIDDEN = 64
COLUMNS = 8  # of a digit
TRAINING_STEPS, BATCH, DIGITS_PER_STRIP = 400, 32, 8
CALIBRATION_STRIPS = 64


class Reader(nn.Module):
    """[T, B, 8] columns -> [T, B, 10] scores."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, HIDDEN)
        self.scores = nn.Linear(HIDDEN, 10)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.gru(columns)[0])
        return scores


def strip(images: np.ndarray) -> np.ndarray:
    """Return the columns [8 * images, 8] of a strip of images [..., 8, 8]."""
    return np.ascontiguousarray(images.transpose(0, 2, 1).reshape(-1, 8), np.float32)


def strips(images: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator):
    """Return random digits side by side: [T, count, 8] and the labels [digits, count]."""
    chosen = rng.integers(len(images), size=(count, DIGITS_PER_STRIP))
    columns = np.stack([strip(images[row]) for row in chosen], axis=1)
    return torch.from_numpy(columns), torch.from_numpy(labels[chosen.T])


def train(images: np.ndarray, labels: np.ndarray) -> Reader:
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=TRAINING_STEPS)
    for _ in range(TRAINING_STEPS):
        columns, wanted = strips(images, labels, BATCH, rng)
        scores = model(columns)[COLUMNS - 1 :: COLUMNS]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def stream(step: Callable, columns: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the states [T, H] of one strip, column by column, and the median microseconds of a step."""
    state, found, times = None, [], []
    for column in columns[:, None]:  # [1, 8]: a batch of one strip
        start = time.perf_counter()
        y, state = step(column, state)
        times.append(time.perf_counter() - start)
        found.append(np.asarray(y).reshape(-1))
    return np.stack(found), 1e6 * statistics.median(times)


def main() -> int:
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.3, random_state=SEED, stratify=labels
    )
    start = time.perf_counter()
    model = train(train_x, train_y)
    print(f"trained on {len(train_x)} digits in {time.perf_counter() - start:.0f} s")

    samples, _ = strips(train_x, train_y, CALIBRATION_STRIPS, np.random.default_rng(SEED + 1))
    calibrated = Calibrator(GruWeights.from_torch(model.gru)).observe(samples.numpy())
    quantized = {f"int{bits}": calibrated.finish(Config(bits=bits, pipeline="fused")) for bits in (8, 16)}

    columns = strip(test_x)
    print(f"one strip of {len(test_x)} digits that training never saw, {len(columns)} steps, the state carried on\n")
    with torch.no_grad():
        exact, microseconds = stream(lambda x, h: model.gru(torch.from_numpy(x)[None], h), columns)

        def read(states: np.ndarray) -> np.ndarray:
            ends = torch.from_numpy(states[COLUMNS - 1 :: COLUMNS])
            return model.scores(ends).argmax(dim=1).numpy()

        wanted = read(exact)
        print("             right   accuracy  as float  error at the start  at the end  us per step")
        count = len(test_y)

        def row(name: str, states: np.ndarray, each: float) -> int:
            answers = read(states)
            right, same = (answers == test_y).sum(), (answers == wanted).sum()
            tenth = len(states) // 10
            first, last = (
                np.sqrt(np.square(states[part] - exact[part]).mean() / np.square(exact[part]).mean())
                for part in (slice(0, tenth), slice(-tenth, None))
            )
            print(
                f"{name:<11}{right:>4}/{count}{right / count:>11.2%}{same / count:>10.2%}{first:>20.3%}{last:>12.3%}"
                f"{each:>13.1f}"
            )
            return int(same)

        row("torch fp32", exact, microseconds)
        agreed = {}
        for name, gru in quantized.items():
            states, each = stream(gru.step, columns)
            agreed[name] = row(f"qcore {name}", states, each)
            whole, _ = gru(columns[:, None])
            if not np.array_equal(whole[:, 0], states):
                print(f"{name}: streamed and whole results differ", file=sys.stderr)
                return 1
    print(
        "\nas float: the same answer as torch's. error: of the state, rms, relative to torch's, over the first and the"
    )
    print("last tenth of the strip. The whole strip in one call gave the same integers as the stream.")
    show_size(quantized)
    return 0 if agreed["int8"] >= 0.97 * count and agreed["int16"] >= 0.995 * count else 1


def show_size(quantized: dict[str, QuantGRU]) -> None:
    weights = 3 * HIDDEN * (8 + HIDDEN)
    sizes = ", ".join(f"{weights * gru.config.bits // 8:,} ({name})" for name, gru in quantized.items())
    print(f"bytes of weights: {4 * weights:,} (fp32), {sizes}")


if __name__ == "__main__":
    sys.exit(main())
