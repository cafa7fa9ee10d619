"""QuantGRU of torch.nn.GRU: layers, directions, batch_first, tensors in and out."""

import numpy as np
import pytest
import torch

from qcore.gru import Calibrator, Config, GruWeights, QuantGRU, float_cell


def module(**options):
    torch.manual_seed(0)
    return torch.nn.GRU(7, 9, **options)


def relative(y, exact):
    return float((y - exact.detach()).norm() / exact.detach().norm())


def test_the_float_cell_is_torchs():
    gru = module(num_layers=2, bidirectional=True).double()
    weights = GruWeights.from_torch(gru)
    x = torch.randn(6, 3, 7, dtype=torch.float64)
    inputs = x.numpy()
    for layer in weights.layers:
        inputs = np.concatenate(
            [float_cell.run(direction, inputs, reverse=side == 1)[0] for side, direction in enumerate(layer)], axis=2
        )
    np.testing.assert_allclose(inputs, gru(x)[0].detach().numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 3}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}, {"bias": False}]
)
def test_close_to_torch(options):
    gru = module(**options)
    shape = (5, 30, 7) if options.get("batch_first") else (30, 5, 7)
    x = torch.randn(shape)
    h0 = torch.randn(gru.num_layers * (2 if gru.bidirectional else 1), 5, 9).clamp(-0.9, 0.9)
    exact, state = gru(x, h0)
    for bits, bound in ((8, 0.08), (16, 1e-3)):
        config = Config(bits=bits, pipeline="fused")
        # x itself is observed, with its h0, so that nothing is clipped.
        arrays = [value.double().numpy() for value in (x, h0)]
        q = Calibrator(GruWeights.from_torch(gru)).observe(*arrays).finish(config)
        y, last = q(x, h0)
        assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
        assert (y.shape, last.shape) == (exact.shape, state.shape)
        assert relative(y, exact) < bound, (bits, relative(y, exact))


def test_dtypes_and_cells():
    gru = module()
    q = QuantGRU.from_torch(gru, torch.randn(30, 5, 7), bits=16)
    x = torch.randn(4, 5, 7)
    for dtype in (torch.float16, torch.bfloat16):
        y, last = q(x.to(dtype))
        assert y.dtype == dtype and last.dtype == dtype
        assert relative(y.float(), q(x.to(dtype).float())[0]) < 1e-2
    cell = torch.nn.GRUCell(7, 9)
    q = QuantGRU.from_torch(cell, torch.randn(30, 5, 7), bits=16)
    y, state = q.step(x[0])
    assert relative(y, cell(x[0])) < 5e-3
    assert state.shape == (1, 5, 9)


def test_other_modules_are_refused():
    for other in (torch.nn.LSTM(3, 4), torch.nn.Linear(3, 4)):
        with pytest.raises(TypeError, match=r"gru weights: .*torch\.nn\.GRU"):
            GruWeights.from_torch(other)


@pytest.mark.parametrize("seed", range(16))
def test_random_layers_with_lengths(seed):
    """Everything at once, at 16 bits: layers, directions, biases, batch_first, and lengths as torch packs them."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    c, h, steps, batch = (int(n) for n in rng.integers([1, 1, 2, 1], [20, 24, 30, 7]))
    options = {
        "num_layers": 1 + seed % 3,
        "bidirectional": bool(rng.integers(2)),
        "batch_first": bool(rng.integers(2)),
        "bias": bool(rng.integers(4)),
    }
    gru = torch.nn.GRU(c, h, **options)
    x = torch.randn((batch, steps, c) if options["batch_first"] else (steps, batch, c))
    h0 = 0.9 * torch.rand(gru.num_layers * (1 + options["bidirectional"]), batch, h)
    lengths = rng.integers(1, steps + 1, batch)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x, torch.from_numpy(lengths), batch_first=options["batch_first"], enforce_sorted=False
    )
    outputs, state = gru(packed, h0)
    exact, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=options["batch_first"], total_length=steps)

    calibrated = Calibrator(GruWeights.from_torch(gru))
    for b, length in enumerate(lengths):  # each sequence without its padding, so that nothing is clipped
        row = x[b : b + 1, :length] if options["batch_first"] else x[:length, b : b + 1]
        calibrated.observe(row.numpy(), h0[:, b : b + 1].numpy())
    for pipeline in ("staged", "fused"):
        q = calibrated.finish(Config(bits=16, pipeline=pipeline))
        y, last = q(x, h0, lengths=torch.from_numpy(lengths.astype(np.int32)))
        assert y.shape == exact.shape and last.shape == state.shape
        for got, wanted in ((y, exact), (last, state)):
            assert float((got - wanted.detach()).abs().max()) < 1e-3, (pipeline, options)
