"""Accuracy of the quantized LSTM on the cases of docs/recurrent/lstm.md: calibrated on one batch, tested on another.

python scripts/lstm_accuracy.py [--seeds 0 1]
"""

import argparse
from collections.abc import Callable

import numpy as np

from qcore.lstm import Calibrator, Config, LstmWeights, float_cell

Case = tuple[LstmWeights, Callable[[], np.ndarray]]


def case_a(rng: np.random.Generator) -> Case:
    """Make an LSTM with torch's default initialization: C = 128, H = 256, B = 32, T = 50."""
    c, h, bound = 128, 256, 1 / 16
    parts = [rng.uniform(-bound, bound, shape) for shape in ((4 * h, c), (4 * h, h), 4 * h, 4 * h)]
    return LstmWeights.from_arrays(*parts), lambda: rng.uniform(-0.7, 0.8, (50, 32, c))


def case_c(rng: np.random.Generator) -> Case:
    """Make an LSTM with large weights, which saturate the gates: C = 64, H = 128, B = 16, T = 100."""
    c, h = 64, 128
    sizes = [((4 * h, c), 0.5), ((4 * h, h), 0.25), (4 * h, 0.3), (4 * h, 0.3)]
    weights = LstmWeights.from_arrays(*(rng.normal(0, sigma, shape) for shape, sigma in sizes))
    return weights, lambda: rng.normal(0, 1, (100, 16, c))


CASES = {"A": case_a, "C": case_c}
CONFIGS = (
    Config(),
    Config(widths={"c": 8}),
    Config(widths={"c_tanh": 8}),
    Config(widths={"g": 16}),
    Config(widths={"h": 16}),
    Config(widths={"weights": 16}),
    Config(bits=16),
    Config(bits=16, tables="interp"),
)


def described(config: Config) -> str:
    widths = ", ".join(f"{name} {bits}" for name, bits in config.widths.items())
    return (
        f"{config.bits}{', ' + widths if widths else ''}{', interpolated tables' if config.tables == 'interp' else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    print("| seed | case | bits | mean squared error | cosine |")
    print("|---|---|---|---|---|")
    for seed in parser.parse_args().seeds:
        for name, case in CASES.items():
            weights, inputs = case(np.random.default_rng(seed))
            seen, tested = inputs(), inputs()
            exact = float_cell.run(weights.layers[0][0], tested)[0]
            calibrated = Calibrator(weights).observe(seen)
            for config in CONFIGS:
                y = calibrated.finish(config)(tested.astype(np.float32))[0].astype(float)
                error = np.square(y - exact).mean()
                cosine = (y * exact).sum() / np.sqrt(np.square(y).sum() * np.square(exact).sum())
                print(f"| {seed} | {name} | {described(config)} | {error:.2e} | {cosine:.6f} |", flush=True)


if __name__ == "__main__":
    main()
