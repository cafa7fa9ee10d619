"""Recurrent layers in training mode: the deployed integers forward, torch's gradients within rounding backward."""

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qcore  # noqa: E402
import qcore.torch  # noqa: E402
from qcore import gru, lstm  # noqa: E402

KINDS = {"GRU": gru, "LSTM": lstm}
CONFIGS = {"8": {}, "16": {"bits": 16}, "4": {"widths": {"weights": 4}}, "even": {"rounding": "half_even"}}
FORMS = [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}]
PROJECTED = FORMS[1] | {"proj_size": 3}


def made(kind, config=None, form=None, **options):
    torch.manual_seed(0)
    net = getattr(torch.nn, kind)(5, 7, **(form or {}))
    x = torch.randn(9, 4, 5)
    config = KINDS[kind].Config(**(config or {}))
    return net, getattr(qcore.torch, kind).from_float(net, samples=x, config=config, trainable=True, **options), x


def flat(result):
    """Return y and the last states."""
    y, last = result
    return [y, *(last if isinstance(last, tuple) else (last,))]


def loss_of(result):
    return sum((each * torch.arange(each.numel()).reshape(each.shape).sin()).sum() for each in flat(result))


def states(kind, form, batch=4):
    rows = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
    sizes = (7,) if kind == "GRU" else (form.get("proj_size", 7), 7)
    scale = 0.01 if "proj_size" in form else 0.1  # within the ranges of h: numbers beyond them get no gradient
    given = [scale * torch.randn(rows, batch, size) for size in sizes]
    return [each.requires_grad_() for each in given]


@pytest.mark.parametrize(
    ("kind", "config", "form"),
    [
        *((kind, name, FORMS[1]) for kind in KINDS for name in CONFIGS),
        *((kind, *rest) for kind in KINDS for rest in (("8", {}), ("4", FORMS[2]))),
        *(("LSTM", name, PROJECTED) for name in CONFIGS),
    ],
)
def test_training_computes_the_deployed_bits(kind, config, form):
    _, module, _ = made(kind, CONFIGS[config], form)
    x = 1.5 * torch.randn((4, 9, 5) if form.get("batch_first") else (9, 4, 5))
    batch = 4
    given = states(kind, form, batch)
    arguments = (x, given[0] if kind == "GRU" else tuple(given))
    module.train()
    trained = flat(module(*arguments))
    deployed = module.quantized(x, *(each.detach() for each in given))
    evaluated = flat(module.eval()(*arguments))
    for got, wanted, other in zip(trained, deployed, evaluated, strict=True):
        assert torch.equal(got, wanted) and torch.equal(got, other)
    assert trained[0].requires_grad


@pytest.mark.parametrize(
    ("kind", "form"),
    [*((kind, form) for kind in KINDS for form in FORMS), ("LSTM", PROJECTED), ("LSTM", {"proj_size": 3})],
)
def test_gradients_are_torchs_within_rounding(kind, form):
    net, module, x = made(kind, CONFIGS["16"], form)
    grads = []
    for layer in (net, module.train()):
        torch.manual_seed(1)
        inputs, given = x.clone().requires_grad_(), states(kind, form, x.shape[0 if form.get("batch_first") else 1])
        loss_of(layer(inputs, given[0] if kind == "GRU" else tuple(given))).backward()
        own = net if layer is net else module.trained
        grads.append(
            [inputs.grad, *(each.grad for each in given), *(p.grad for _, p in sorted(own.named_parameters()))]
        )
    for wanted, got in zip(*grads, strict=True):
        assert (got - wanted).norm() < 1e-3 * wanted.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beyond_the_format_get_no_gradient(kind):
    _, module, x = made(kind)
    module.train().freeze_ranges()
    inputs = x.clone()
    inputs[3, 1, 2] = 50
    inputs.requires_grad_()
    loss_of(module(inputs)).backward()
    assert inputs.grad[3, 1, 2] == 0 and (inputs.grad == 0).sum() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_move_by_a_tenth_until_they_are_frozen(kind):
    net, module, x = made(kind, form={"num_layers": 2})
    before = module.trained.ranges.clone()
    names = module.trained._observer(None).seen
    place = names.index("x")
    assert before[0, place].tolist() == pytest.approx([float(x.min()), float(x.max())])
    module.eval()(3 * x)
    assert torch.equal(module.trained.ranges, before)
    module.train()(3 * x)
    moved = module.trained.ranges.clone()
    wanted = 0.9 * before[0, place] + 0.1 * 3 * before[0, place]
    assert torch.allclose(moved[0, place], wanted) and (moved != before).any(2).any(1).all()
    exponent = module.quantized.format("x").exponent
    module.freeze_ranges()
    module(9 * x)
    assert torch.equal(module.trained.ranges, moved) and module.quantized.format("x").exponent == exponent
    module.freeze_ranges(False)
    module(9 * x)
    assert not torch.equal(module.trained.ranges, moved)
    assert [tuple(p.shape) for p in net.parameters()] == [tuple(p.shape) for p in module.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_error_of_four_bits(kind):
    """The deployed integers predict better after some steps than the rounded weights that they began with."""
    _, module, x = made(kind, {"widths": {"weights": 4}, "tables": "interp"})
    head = torch.randn(7, 1)
    wanted = (x.cumsum(0)[..., :1] / 4).tanh()
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    errors = []
    for step in range(21):
        if step in (0, 20):
            errors.append(float((module.eval()(x)[0] @ head - wanted).square().mean()))
        loss = (module.train()(x)[0] @ head - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 10:
            module.freeze_ranges()
    assert errors[-1] < 0.5 * errors[0], errors


@pytest.mark.parametrize(("kind", "form"), [("GRU", {}), ("LSTM", {}), ("LSTM", {"proj_size": 3})])
def test_state_dicts_copies_and_modes(kind, form):
    _, module, x = made(kind, {"widths": {"weights": 4}}, {"num_layers": 2, "bidirectional": True} | form)
    module.train()(x)
    state = module.eval().state_dict()
    assert {"trained.weight_hh_l1_reverse", "trained.ranges", "trained.frozen", "state"} < set(state)
    y = module(x)[0]
    read = type(module).from_state_dict(state)
    for other in (read.eval(), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x)[0], y)
        assert torch.equal(other.train()(x)[0], other.eval()(x)[0])
    plain = type(module)(module.quantized)
    assert torch.equal(plain(x)[0], y) and not list(plain.parameters())
    with pytest.raises(RuntimeError, match="trainable"):
        plain.load_state_dict(state)
    halves = module.half()
    assert halves.trained.ranges.dtype == torch.float64 and halves.trained.weight_ih_l0.dtype == torch.float16
    assert halves.train()(x.half())[0].dtype == torch.float16


def test_compiled_models_break_their_graph_around_training():
    _, module, x = made("GRU")
    model = torch.nn.Sequential(torch.nn.Linear(5, 5), module).train()
    module.freeze_ranges()
    y = torch.compile(model, backend="eager")(x)[0]
    y.sum().backward()
    assert torch.equal(y, model(x)[0]) and model[0].weight.grad.norm() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_errors(kind):
    net, module, x = made(kind)
    other = getattr(torch.nn, kind)(5, 7, num_layers=2, dropout=0.5)
    plain = type(module).from_float(net, samples=x)
    # torch's modules have no other cell: weights of ONNX's forms are none of them.
    w, r = np.zeros((28, 5)), np.zeros((28, 7))
    peepholes = qcore.lstm.LstmWeights.from_arrays(w, r, peepholes=np.zeros((3, 7)))
    reset_before = qcore.gru.GruWeights.from_arrays(w[:21], r[:21], linear_before_reset=0)
    config = KINDS[kind].Config(rule="mse")
    for call, words in [
        (lambda: type(module).from_float(other, samples=x, trainable=True), "dropout 0.5 between layers, expected 0"),
        (lambda: type(module).from_float(net, samples=x, config=config, trainable=True), "config.rule is 'mse'"),
        (
            lambda: qcore.torch.LSTM.from_float(peepholes, samples=x, trainable=True),
            "module is a LstmWeights, expected a torch.nn.LSTM",
        ),
        (
            lambda: qcore.torch.GRU.from_float(reset_before, samples=x, trainable=True),
            "module is a GruWeights, expected a torch.nn.GRU",
        ),
        (plain.freeze_ranges, "freeze_ranges() of a module without float weights, expected one of from_float(..., "),
        (lambda: module.train()(x[..., :4]), "x has shape [9, 4, 4], expected"),
        (lambda: module.train()(x * float("nan")), "expected finite numbers"),
    ]:
        with pytest.raises(qcore.QcoreError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_files_have_two_weights_of_four_bits_in_a_byte(kind, tmp_path):
    _, module, x = made(kind, {"widths": {"weights": 4}}, {"num_layers": 2})
    sizes = []
    for bits, model in ((4, module.quantized), (5, made(kind, {"widths": {"weights": 5}})[1].quantized)):
        path = tmp_path / f"{bits}.safetensors"
        model.save(path)
        read = type(model).load(path)
        for name in "wr":
            assert np.array_equal(read._layers[0][0][1][name], model._layers[0][0][1][name])
            assert model._layers[0][0][1][name].min() >= -(2 ** (bits - 1))
        assert torch.equal(read(x)[0], model(x)[0])
        from safetensors.numpy import load_file

        sizes.append([load_file(path)[f"0.0.{name}"] for name in "wr"])
    rows = (3 if kind == "GRU" else 4) * 7
    assert [(each.dtype.name, each.shape) for each in sizes[0]] == [("uint8", (rows, 3)), ("uint8", (rows, 4))]
    assert [each.dtype.name for each in sizes[1]] == ["int8", "int8"]


class Tagger(torch.nn.Module):
    """Computes a GRU and an LSTM between linear layers."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.head = torch.nn.Linear(6, 8), torch.nn.Linear(7, 3)
        self.gru = torch.nn.GRU(8, 7, batch_first=True)
        self.lstm = torch.nn.LSTM(7, options.get("hidden_size", 7), batch_first=True, **options.get("lstm", {}))

    def forward(self, x):
        return self.head(self.lstm(self.gru(self.into(x))[0])[0])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("bits", [None, 4])
def test_quantize_makes_recurrent_layers_that_train(bits, training):
    model, x = Tagger().train(training), torch.randn(4, 9, 6)
    floats = copy.deepcopy(model).eval()
    report = qcore.torch.quantize_(model, bits=bits, calibration=x, trainable=True)
    rows = {row.name: row for row in report.layers}
    assert [name for name, row in rows.items() if row.quantized] == ["gru", "lstm"]
    assert rows["gru"].bits == rows["lstm"].bits == (bits or 8) and rows["gru"].note == "trainable"
    for name in ("into", "head"):
        assert rows[name].note == "trainable=True leaves it in floating point, to be trained" and rows[name].asked
    assert report.warning == "" and 0 < report.model_error < 0.2
    assert isinstance(model.into, torch.nn.Linear) and model.gru.training is model.lstm.training is training
    weights = model.gru.quantized._layers[0][0][1]["w"]
    assert np.abs(weights.astype(int)).max() <= 2 ** ((bits or 8) - 1)
    # The calibration and the errors have moved no range.
    assert torch.equal(model.gru.trained.ranges, _ranges(floats, x, bits or 8))

    model.train()
    model(x).square().sum().backward()
    assert all(each.grad is not None and each.grad.norm() > 0 for each in model.parameters())
    torch.optim.SGD(model.parameters(), 0.01).step()
    inside = model.into(x)
    trained = model.gru(inside)[0].detach()
    assert torch.equal(trained, model.gru.quantized(inside.detach())[0])

    y = model.eval()(x).detach()
    restored = Tagger()
    qcore.torch.restore_(restored, model.state_dict())
    assert torch.equal(restored.eval()(x), y) and restored.gru.trained is not None
    later = qcore.torch.quantize_(model, bits=8, calibration=x)
    assert [row.name for row in later.layers] == ["into", "head"] and later.share == 1.0
    assert torch.equal(model.gru(inside)[0], restored.gru(inside)[0])


def _ranges(floats, x, bits):
    config = gru.Config(widths={"weights": bits})
    with torch.no_grad():
        inside = floats.into(x)
    return qcore.torch.GRU.from_float(floats.gru, samples=inside, config=config, trainable=True).trained.ranges


def test_quantize_says_which_layers_cannot_be_trained():
    x = torch.randn(4, 9, 6)
    model = Tagger(lstm={"num_layers": 2, "dropout": 0.5}).eval()
    with pytest.warns(UserWarning, match="LSTM: it has dropout between layers"):
        report = qcore.torch.quantize_(model, calibration=x, trainable=True)
    notes = {row.name: row.note for row in report.layers if not row.quantized and not row.asked}
    assert notes == {"lstm": "it has dropout between layers, without which integers in training are computed"}
    model = Tagger(hidden_size=9, lstm={"proj_size": 7})
    report = qcore.torch.quantize_(model, calibration=x, trainable=True)
    assert {row.name for row in report.layers if row.quantized} == {"gru", "lstm"}

    for module, options, words in [
        (Tagger(), {}, "calibration is None, expected inputs of the model with trainable=True"),
        (Tagger(), {"calibration": x, "exclude": ["gru", "lstm"]}, "(gru: exclude has 'gru'; lstm: exclude has"),
        (torch.nn.Sequential(torch.nn.Linear(6, 6)), {"calibration": x}, "(it has no GRU and no LSTM)"),
        (Tagger(), {"calibration": x, "target_error": 0.1}, "target_error is 0.1, expected None with trainable=True"),
        (Tagger(), {"calibration": x, "smooth": True}, "smooth is True, expected False with trainable=True"),
        (Tagger(), {"calibration": x, "encoding": "q4_k"}, "encoding is 'q4_k', expected None with trainable=True"),
        (Tagger(), {"calibration": x, "trainable": 1}, "trainable is a int, expected a bool"),
    ]:
        before = list(module.modules())
        with pytest.raises(qcore.QcoreError) as caught:
            qcore.torch.quantize_(module, **{"trainable": True, **options})
        assert words in str(caught.value), str(caught.value)
        assert list(module.modules()) == before
