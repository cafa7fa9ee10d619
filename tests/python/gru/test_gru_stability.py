"""Over time: the quantized state does not walk away from the float one, and a state that is fixed stays so."""

import numpy as np
import pytest

from qcore.gru import Calibrator, Config, GruWeights, float_cell

PIPELINES = ("staged", "fused")
STEPS, FIRST = 10_000, 100


def slow_gru():
    """z around sigmoid(2) = 0.88, so that a state remembers, and errors could add up over some ten steps."""
    rng = np.random.default_rng(0)
    c, h = 6, 12
    bias = np.r_[np.full(h, 2.0), rng.normal(0, 0.3, 2 * h)]
    return GruWeights.from_arrays(rng.normal(0, 0.4, (3 * h, c)), rng.normal(0, 0.4, (3 * h, h)), bias, None)


@pytest.mark.parametrize("rounding", ["half_away", "half_even"])
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("bits", [8, 16])
def test_the_state_does_not_drift(bits, pipeline, rounding):
    """The error of the last 1,000 of 10,000 steps is that of the first 100, and so is its mean: no bias adds up."""
    weights = slow_gru()
    rng = np.random.default_rng(1)
    # Within what calibration saw: what 10,000 steps clip, however rarely, is not drift.
    x = rng.uniform(-2, 2, (STEPS, 2, 6)).astype(np.float32)
    calibrator = Calibrator(weights).observe(rng.uniform(-2.5, 2.5, (1000, 2, 6)))
    y = calibrator.finish(Config(bits=bits, pipeline=pipeline, rounding=rounding))(x)[0]
    error = y - float_cell.run(weights.layers[0][0], x.astype(float))[0]
    first, last = error[:FIRST], error[-1000:]
    rms = [float(np.sqrt(np.square(part).mean())) for part in (first, last)]
    assert rms[1] <= 1.5 * rms[0], rms
    assert abs(last.mean()) <= 1.5 * rms[0]
    # The largest of ten times as many numbers is larger, but not by much.
    assert abs(last).max() <= 2 * abs(first).max()


def fixed_gru(level, z_bias):
    """Whatever x and h are: z = sigmoid(z_bias), g = level."""
    h = 4
    bias = np.r_[np.full(h, z_bias), np.zeros(h), np.full(h, np.arctanh(level))]
    return GruWeights.from_arrays(np.zeros((3 * h, 1)), np.zeros((3 * h, h)), bias)


@pytest.mark.parametrize("z_bias", [-3.0, 0.0, 0.7, 3.0])
@pytest.mark.parametrize("level", [0.5, -0.25, 0.8141, -0.6003])
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("bits", [8, 16])
def test_a_gain_of_one_keeps_the_state(bits, pipeline, level, z_bias):
    """h = g = const: z * h + (1 - z) * g must stay, whatever z is. 2**ez is 1.0, not the largest code of z.

    Codes of h and g need not stand for the same number; the state may settle on g's, within their rounding.
    """
    weights = fixed_gru(level, z_bias)
    h0 = np.full((1, 1, 4), level, np.float32)
    x = np.zeros((3000, 1, 1), np.float32)
    q = Calibrator(weights).observe(x[:50], h0).finish(Config(bits=bits, pipeline=pipeline))
    y = q(x, h0)[0][:, 0, 0].astype(float)
    step = 2.0 ** -min(q.format("h").exponent, q.format("g").exponent)
    assert abs(y - level).max() <= 2 * step, (abs(y - level).max(), step)
    # It has settled, and stays: no limit cycle, no creeping.
    assert (y[1000:] == y[1000]).all()
