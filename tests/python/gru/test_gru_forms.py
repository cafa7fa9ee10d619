"""Forms of ONNX's GRU that torch's does not have."""

import numpy as np
import pytest

import qcore
from qcore.gru import Calibrator, Direction, GruWeights, QuantGRU
from qcore.gru.chunks import run_in_chunks

T, B, C, H = 12, 4, 6, 10


def directions(sizes=(C,), seed=0, **options):
    rng = np.random.default_rng(seed)
    return [
        [
            Direction(
                rng.normal(0, 0.4, (3 * H, c)),
                rng.normal(0, 0.3, (3 * H, H)),
                rng.normal(0, 0.2, 3 * H),
                rng.normal(0, 0.2, 3 * H),
                **options,
            )
        ]
        for c in sizes
    ]


def inputs(seed=1, steps=T):
    return np.random.default_rng(seed).normal(0, 1, (steps, B, C)).astype(np.float32)


def test_a_reversed_gru_takes_the_steps_from_the_last_to_the_first(tmp_path):
    layers, x = directions((C, H)), inputs()
    turned = np.ascontiguousarray(x[::-1])
    calibrator = Calibrator(GruWeights(layers, reverse=True)).observe(x)
    q, forward = calibrator.finish(), Calibrator(GruWeights(layers)).observe(turned).finish()
    y, last = q(x)
    expected, states = forward(turned)
    np.testing.assert_array_equal(y, expected[::-1])
    np.testing.assert_array_equal(last, states)
    lengths = np.array([12, 0, 5, 1], np.int32)
    short, last = q(x, lengths=lengths)
    for row, length in enumerate(lengths):
        alone, state = q(x[:length, row : row + 1])
        np.testing.assert_array_equal(short[:length, row], alone[:, 0])
        assert not short[length:, row].any() and (last[:, row] == state[:, 0]).all()
    np.testing.assert_array_equal(run_in_chunks(q, x, steps=5)[0], y)
    q.save(tmp_path / "gru")
    loaded = QuantGRU.load(tmp_path / "gru")
    assert loaded.reverse and repr(loaded) == repr(q) and "reverse, " in repr(q)
    np.testing.assert_array_equal(loaded(x)[0], y)
    with pytest.raises(qcore.QcoreValueError, match=r"gru: step\(\) on a reversed GRU, which needs the whole sequence"):
        q.step(x[0])
    with pytest.raises(qcore.QcoreValueError, match="gru trace: the GRU runs from the last step to the first"):
        q.golden(tmp_path / "golden", x)
    with pytest.raises(qcore.QcoreValueError, match="gru search: the weights run from the last step to the first"):
        calibrator.search(10000)
    with pytest.raises(qcore.QcoreValueError, match="gru weights: reverse is True for two directions"):
        GruWeights([[*layers[0], *layers[0]]], reverse=True)
