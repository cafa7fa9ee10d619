"""Accuracy of the quantized GRU on the cases of docs/gru.md: calibrated on one batch, tested on another.

python scripts/gru_accuracy.py [--seeds 0 1 2 3 4] [--methods mse percentile]
python scripts/gru_accuracy.py --widths    # what each choice of widths costs, at seed 0

The status is 1 if the recommended settings, the defaults of method and pipeline, miss a bar.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from qcore._recurrent.ranges import METHODS
from qcore.gru import Calibrator, Config, GruWeights, float_cell

Case = tuple[GruWeights, Callable[[], np.ndarray]]


def truncated(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Draw normal numbers with sigma a sixth of the range, those outside drawn again."""
    values = rng.normal((low + high) / 2, (high - low) / 6, shape)
    while (bad := (values < low) | (values > high)).any():
        values[bad] = rng.normal((low + high) / 2, (high - low) / 6, int(bad.sum()))
    return values


def case_a(rng: np.random.Generator) -> Case:
    """Make a GRU with torch's default initialization: C = 128, H = 256, B = 64, T = 50."""
    c, h, bound = 128, 256, 1 / 16
    parts = [rng.uniform(-bound, bound, shape) for shape in ((3 * h, c), (3 * h, h), 3 * h, 3 * h)]
    return GruWeights.from_arrays(*parts), lambda: rng.uniform(-0.7, 0.8, (50, 64, c))


def case_b(rng: np.random.Generator) -> Case:
    """Make a GRU with small weights, larger biases: C = H = 256, B = 64, T = 50."""
    h = 256
    ranges = [((3 * h, h), 0.001), ((3 * h, h), 0.005), ((3 * h,), 0.15), ((3 * h,), 0.15)]
    weights = GruWeights.from_arrays(*(truncated(rng, shape, -bound, bound) for shape, bound in ranges))
    return weights, lambda: truncated(rng, (50, 64, h), -3, 3.5)


def case_c(rng: np.random.Generator) -> Case:
    """Make a GRU with large weights, which saturate the gates: C = 64, H = 128, B = 16, T = 100."""
    c, h = 64, 128
    sizes = [((3 * h, c), 0.5), ((3 * h, h), 0.25), (3 * h, 0.3), (3 * h, 0.3)]
    weights = GruWeights.from_arrays(*(rng.normal(0, sigma, shape) for shape, sigma in sizes))
    return weights, lambda: rng.normal(0, 1, (100, 16, c))


CASES = {"A": case_a, "B": case_b, "C": case_c}

# Bounds of the mean squared error, by case and bits; A with 8 bits has one of the cosine.
ERROR_BARS = {("A", 16): 5e-10, ("B", 8): 1e-6, ("C", 8): 2.2e-3, ("C", 16): 1e-6}
COSINE_BARS = {("A", 8): 0.9998}

PIPELINES = ("fused", "staged")
RECOMMENDED = (inspect.signature(Calibrator).parameters["method"].default, Config().pipeline)


@dataclass(frozen=True)
class Result:
    case: str
    bits: int
    method: str
    pipeline: str
    error: float
    cosine: float

    @property
    def bar(self) -> str:
        key = self.case, self.bits
        if key in COSINE_BARS:
            return f"cosine >= {COSINE_BARS[key]}"
        return f"error <= {ERROR_BARS[key]:.1e}" if key in ERROR_BARS else "-"

    @property
    def met(self) -> bool | None:
        """None without a bar."""
        key = self.case, self.bits
        if key in COSINE_BARS:
            return self.cosine >= COSINE_BARS[key]
        return self.error <= ERROR_BARS[key] if key in ERROR_BARS else None


def measure(seed: int, methods: list[str]) -> Iterator[Result]:
    for name, case in CASES.items():
        weights, inputs = case(np.random.default_rng(seed))
        seen, tested = inputs(), inputs()
        exact, _ = float_cell.run(weights.layers[0][0], tested)
        for method in methods:
            calibrated = Calibrator(weights, method).observe(seen)
            for bits in (8, 16):
                for pipeline in PIPELINES:
                    gru = calibrated.finish(Config(bits=bits, pipeline=pipeline))
                    y = gru(tested.astype(np.float32))[0].astype(float)
                    error = np.square(y - exact).mean()
                    cosine = (y * exact).sum() / np.sqrt(np.square(y).sum() * np.square(exact).sum())
                    yield Result(name, bits, method, pipeline, float(error), float(cosine))


WIDTHS: dict[int, tuple[dict[str, int], ...]] = {
    8: ({}, {"h": 16}, {"g": 16}, {"z": 16}, {"weights": 16}, {"h": 16, "g": 16}, {"wx": 8, "rh": 8}),
    16: ({}, {"h": 8}, {"g": 8}, {"z": 8}, {"weights": 8}, {"biases": 16}),
}


def print_widths() -> None:
    """Print the mean squared error of each case with single tensors wider or narrower than the preset."""
    print("| preset | other widths | " + " | ".join(CASES) + " |")
    print("|---|---|" + "---|" * len(CASES))
    cases = []
    for case in CASES.values():
        weights, inputs = case(np.random.default_rng(0))
        seen, tested = inputs(), inputs()
        exact, _ = float_cell.run(weights.layers[0][0], tested)
        cases.append((Calibrator(weights).observe(seen), tested.astype(np.float32), exact))
    for bits, choices in WIDTHS.items():
        for widths in choices:
            config = Config(bits=bits, widths=widths)
            errors = (np.square(calibrated.finish(config)(x)[0] - exact).mean() for calibrated, x, exact in cases)
            named = ", ".join(f"{name} {width}" for name, width in widths.items()) or "none"
            print(f"| {bits} | {named} | " + " | ".join(f"{error:.2e}" for error in errors) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=[RECOMMENDED[0]])
    parser.add_argument("--widths", action="store_true", help="what each choice of widths costs, at seed 0")
    options = parser.parse_args()
    if options.widths:
        print_widths()
        return 0
    missed = []
    print("| seed | case | bits | method | pipeline | mean squared error | cosine | bar | met |")
    print("|---|---|---|---|---|---|---|---|---|")
    for seed in options.seeds:
        for it in measure(seed, options.methods):
            met = {None: "-", True: "yes", False: "no"}[it.met]
            print(
                f"| {seed} | {it.case} | {it.bits} | {it.method} | {it.pipeline} | {it.error:.2e} | {it.cosine:.6f} | "
                f"{it.bar} | {met} |",
                flush=True,
            )
            if it.met is False and (it.method, it.pipeline) == RECOMMENDED:
                missed.append(f"{it.case} with {it.bits} bits at seed {seed}")
    if RECOMMENDED[0] in options.methods:
        verdict = "misses " + ", ".join(missed) if missed else "every bar is met"
        print("\nrecommended (method {!r}, pipeline {!r}): {}".format(*RECOMMENDED, verdict))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
