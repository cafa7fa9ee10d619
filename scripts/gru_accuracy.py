"""Accuracy of the quantised GRU on the cases of docs/gru.md: calibrated on one batch, tested on another.

python scripts/gru_accuracy.py [--seed 0]
"""

import argparse
from collections.abc import Callable

import numpy as np

from qcore.gru import Calibrator, Config, GruWeights, float_cell

Case = tuple[GruWeights, Callable[[], np.ndarray]]


def truncated(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Normal numbers with sigma a sixth of the range, those outside drawn again."""
    values = rng.normal((low + high) / 2, (high - low) / 6, shape)
    while (bad := (values < low) | (values > high)).any():
        values[bad] = rng.normal((low + high) / 2, (high - low) / 6, int(bad.sum()))
    return values


def case_a(rng: np.random.Generator) -> Case:
    """torch's default initialisation: C = 128, H = 256, B = 64, T = 50."""
    c, h, bound = 128, 256, 1 / 16
    parts = [rng.uniform(-bound, bound, shape) for shape in ((3 * h, c), (3 * h, h), 3 * h, 3 * h)]
    return GruWeights.from_arrays(*parts), lambda: rng.uniform(-0.7, 0.8, (50, 64, c))


def case_b(rng: np.random.Generator) -> Case:
    """Small weights, larger biases: C = H = 256, B = 64, T = 50."""
    h = 256
    ranges = [((3 * h, h), 0.001), ((3 * h, h), 0.005), ((3 * h,), 0.15), ((3 * h,), 0.15)]
    weights = GruWeights.from_arrays(*(truncated(rng, shape, -bound, bound) for shape, bound in ranges))
    return weights, lambda: truncated(rng, (50, 64, h), -3, 3.5)


def case_c(rng: np.random.Generator) -> Case:
    """Large weights, which saturate the gates: C = 64, H = 128, B = 16, T = 100."""
    c, h = 64, 128
    sizes = [((3 * h, c), 0.5), ((3 * h, h), 0.25), (3 * h, 0.3), (3 * h, 0.3)]
    weights = GruWeights.from_arrays(*(rng.normal(0, sigma, shape) for shape, sigma in sizes))
    return weights, lambda: rng.normal(0, 1, (100, 16, c))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    print("| case | bits | pipeline | mean squared error | cosine |\n|---|---|---|---|---|")
    for name, case in (("A", case_a), ("B", case_b), ("C", case_c)):
        weights, inputs = case(np.random.default_rng(seed))
        seen, tested = inputs(), inputs()
        exact, _ = float_cell.run(weights.layers[0][0], tested)
        calibrated = Calibrator(weights).observe(seen)
        for bits in (8, 16):
            for pipeline in ("staged", "fused"):
                y = calibrated.finish(Config(bits=bits, pipeline=pipeline))(tested.astype(np.float32))[0].astype(float)
                error = np.square(y - exact).mean()
                cosine = (y * exact).sum() / np.sqrt(np.square(y).sum() * np.square(exact).sum())
                print(f"| {name} | {bits} | {pipeline} | {error:.2e} | {cosine:.6f} |", flush=True)


if __name__ == "__main__":
    main()
