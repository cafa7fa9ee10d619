"""quantize_(target_bits=...): the mean holds, the choice is the best one, fixed layers stay, and bad arguments."""

import copy
import itertools
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import qcore  # noqa: E402
import qcore.torch as qt  # noqa: E402
from qcore.torch.conversion import target_bits  # noqa: E402
from qcore.torch.report import Candidate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:quantize_")


class Tied(nn.Module):
    """Computes two layers between an embedding and a head that share a weight."""

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(50, 64), nn.Linear(64, 192), nn.Linear(192, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.down(torch.relu(self.up(x))))


def network(seed=0):
    """Return layers of which the first two have nearly no effect on the outputs of the third."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 32))
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
        model[2].bias.copy_(torch.rand(96) + 1)
    return model


def batches(count=6, rows=40, width=64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, width, generator=generator) for _ in range(count)]


def mean_bits(model):
    """Return the bits per weight from the bytes of each packed weight, counted by hand."""
    packed = {each.packed.data_ptr(): each for each in model.modules() if hasattr(each, "packed")}
    nbytes = sum(each.packed.nbytes for each in packed.values())
    return 8 * nbytes / sum(np.prod(each.shape) for each in packed.values())


def relative(got, exact):
    return float((got - exact).norm() / exact.norm())


@torch.no_grad()
@pytest.mark.parametrize("method", ["rtn", "mse", "awq", "gptq"])
@pytest.mark.parametrize("target", [2.5, 3.5, 4.5, 6.0, 20.0])
def test_the_mean_holds_and_is_nearly_used(target, method):
    model = network()
    report = qt.quantize_(model, method=method, scale_dtype="float16", calibration=batches(), target_bits=target)
    assert report.bits_per_weight == pytest.approx(mean_bits(model))
    assert report.bits_per_weight <= target
    assert report.bits_per_weight >= min(target, 8.2) - 0.2
    for row in report.layers:
        assert row.quantized
        assert row.chosen.nbytes == model.get_submodule(row.name).packed.nbytes
        assert {(each.bits, each.block_size) for each in row.candidates} == set(
            itertools.product((2, 3, 4, 5, 6, 8), (32, 64, 128))
        )
    assert json.loads(report.to_json())["layers"][0]["candidates"][0]["bits"] == 2


@torch.no_grad()
def test_bits_go_where_the_output_depends_on_them():
    model = network()
    report = qt.quantize_(model, scale_dtype="float16", method="mse", calibration=batches(), target_bits=4.6)
    first, middle, last = (row.bits for row in report.layers)
    assert last >= 6 > max(first, middle)
    uniform = qt.quantize_(network(), bits=4, block_size=32, scale_dtype="float16", method="mse", calibration=batches())
    assert report.bits_per_weight <= uniform.bits_per_weight + 0.1
    assert report.model_error < 0.8 * uniform.model_error


@torch.no_grad()
def test_sensitivities_are_errors_of_the_model():
    model, x = network(), batches()[:1]
    report = qt.quantize_(copy.deepcopy(model), compute="float", scale_dtype="float16", calibration=x, target_bits=4.5)
    row = report.layers[2]
    for each in row.candidates:
        made = copy.deepcopy(model)
        made[4] = qt.Linear.from_float(
            model[4], bits=each.bits, block_size=each.block_size, compute="float", scale_dtype="float16"
        )
        # The last layer's output is the model's.
        assert each.error == pytest.approx(relative(made(x[0]), model(x[0])), rel=2e-2)


@torch.no_grad()
def test_the_choice_is_near_the_best_of_all():
    report = qt.quantize_(network(3), scale_dtype="float16", calibration=batches(), target_bits=4.4)
    candidates = [row.candidates for row in report.layers]
    limit = 4.4 * sum(np.prod(s) for s in ((96, 64), (96, 96), (32, 96))) / 8
    best = min(
        sum(each.error**2 for each in choice)
        for choice in itertools.product(*candidates)
        if sum(each.nbytes for each in choice) <= limit
    )
    assert sum(row.chosen.error**2 for row in report.layers) <= 1.25 * best


def test_the_hull_and_what_is_left():
    def group(*points):
        found = [Candidate(number, 32, nbytes, error) for number, (nbytes, error) in enumerate(points)]
        return target_bits._Group([], [], found, count=8)

    made = group((10, 8.0), (20, 7.5), (30, 2.0), (40, 2.5), (50, 1.0))
    assert made.steps == [0, 2, 4]  # the second lies above the line, the fourth is worse than the third
    target_bits._choose([made], 29)
    assert made.chosen == 1  # above the hull, but it fits
    one, other = group((10, 8.0), (20, 1.0)), group((10, 4.0), (20, 0.0))
    target_bits._choose([one, other], 15)
    assert (one.chosen, other.chosen) == (1, 0)
    unreached = group((10, 0.0), (20, 0.0), (30, 0.0))
    unreached.is_reached, one.chosen = False, 0
    target_bits._choose([one, unreached], 20)
    assert (one.chosen, unreached.chosen) == (1, 1)


@torch.no_grad()
def test_layers_with_one_weight_have_one_format():
    model, exact = Tied(), Tied()
    exact.load_state_dict(model.state_dict())
    tokens = [torch.arange(50)[None]] * 2
    report = qt.quantize_(model, method="mse", scale_dtype="float16", calibration=tokens, target_bits=5)
    rows = {row.name: row for row in report.layers}
    assert model.embed.packed is model.head.packed
    assert rows["embed"].candidates is rows["head"].candidates
    assert (rows["embed"].bits, rows["embed"].block_size) == (rows["head"].bits, rows["head"].block_size)
    assert report.bits_per_weight == pytest.approx(mean_bits(model))
    assert relative(model(tokens[0]), exact(tokens[0])) == pytest.approx(report.model_error, abs=1e-6)
    other = Tied()
    qt.restore_(other, model.state_dict())
    assert torch.equal(other(tokens[0]), model(tokens[0]))


@torch.no_grad()
def test_options_of_layers_stay_and_count():
    model = network()
    layers = {"0": {"bits": 8, "block_size": 16}, "2": {"block_size": 48, "compute": "float"}, "4": {"bits": 4}}
    report = qt.quantize_(model, scale_dtype="float16", calibration=batches(), target_bits=6.2, layers=layers)
    first, middle, last = report.layers
    assert (first.bits, first.block_size, len(first.candidates)) == (8, 16, 1)
    assert (middle.block_size, middle.compute, len(middle.candidates)) == (48, "float", 6)
    assert (last.bits, len(last.candidates)) == (4, 3)
    assert report.bits_per_weight == pytest.approx(mean_bits(model))
    assert report.bits_per_weight <= 6.2


@torch.no_grad()
def test_convolutions_have_4_or_8_bits_and_tables_do_not_count():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 64, 3), nn.SiLU(), nn.Conv2d(64, 8, 1))
    images = [torch.randn(2, 32, 8, 8) for _ in range(3)]
    report = qt.quantize_(model, activations=True, scale_dtype="float16", calibration=images, target_bits=5)
    convolutions = [row for row in report.layers if row.kind == "Conv2d"]
    assert {each.bits for row in convolutions for each in row.candidates} == {4, 8}
    assert [row.candidates for row in report.layers if row.kind == "SiLU"] == [[]]
    assert report.bits_per_weight <= 5


@torch.no_grad()
def test_modules_of_several_weights_are_measured_by_the_model():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    x = [torch.randn(2, 7, 64) for _ in range(2)]
    report = qt.quantize_(model, scale_dtype="float16", calibration=x, target_bits=5)
    rows = [row for row in report.layers if row.kind == "MultiheadAttention"]
    assert len(rows) == 2
    for row in rows:
        errors = {each.bits: each.error for each in row.candidates if each.block_size == 32}
        assert errors[2] > errors[3] > errors[4] > errors[5] > errors[6] > errors[8] > 0
    assert report.bits_per_weight == pytest.approx(mean_bits(model))


@torch.no_grad()
def test_unreached_layers_take_what_the_target_allows():
    class Skipping(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.used(x)

    model = Skipping()
    report = qt.quantize_(model, scale_dtype="float16", calibration=batches(), target_bits=4.6)
    assert (report.layers[1].bits, report.layers[1].block_size) == (4, 32)
    assert report.bits_per_weight <= 4.6


@torch.no_grad()
@pytest.mark.parametrize("method", ["mse", "awq", "gptq"])
def test_encodings_are_candidates(method):
    names = ("q2_k", "q3_k", "mxfp4", "iq4_nl", "q6_k")
    exact, model = network(), network()
    report = qt.quantize_(
        model,
        method=method,
        scale_dtype="float16",
        calibration=batches(),
        target_bits=4.5,
        encoding=names,
        layers={"2": {"encoding": "q4_k", "method": "mse"}},
    )
    assert report.bits_per_weight == pytest.approx(mean_bits(model)) and report.bits_per_weight <= 4.5
    forms = [(bits, size, None) for bits in (2, 3, 4, 5, 6, 8) for size in (32, 64, 128)]
    for row in (report.layers[0], report.layers[2]):
        found = {(each.bits, each.block_size, each.encoding): each for each in row.candidates}
        assert list(found)[:18] == forms and [each.encoding for each in row.candidates[18:]] == list(names)
        assert row.chosen.nbytes == model.get_submodule(row.name).packed.nbytes
        assert all(each.error > 0 for each in row.candidates)
    assert [each.encoding for each in report.layers[1].candidates] == ["q4_k"]
    assert report.layers[1].chosen.encoding == report.layers[1].encoding == "q4_k"
    assert model[2].weight == qcore.quantize_encoded(exact[2].weight, "q4_k")


@torch.no_grad()
def test_a_chosen_encoding_takes_awq_in_the_place_of_gptq():
    model, kept = network(), copy.deepcopy(network())
    options = {"scale_dtype": "float16", "calibration": batches(), "compute": "float", "scheme": "asymmetric"}
    report = qt.quantize_(model, method="gptq", target_bits=2.3, encoding="tq2_0", **options)
    chosen = [row.name for row in report.layers if row.encoding == "tq2_0"]
    assert chosen
    for name in chosen:
        inputs = torch.cat([kept[: int(name)](x) for x in batches()])
        weight = kept.get_submodule(name).weight
        expected = qcore.quantize_encoded(weight, "tq2_0", method="awq", samples=inputs)
        assert model.get_submodule(name).weight == expected
    assert "tq2_0" in str(report)
    assert {each["encoding"] for each in json.loads(report.to_json())["layers"][0]["candidates"]} == {None, "tq2_0"}


@torch.no_grad()
def test_the_smallest_encodings_count_for_the_least_target():
    options = {"scale_dtype": "float16", "calibration": batches(2), "method": "mse", "scheme": "asymmetric"}
    with pytest.raises(ValueError, match=r"target_bits is 2\.3, expected 2\.389 or more"):
        qt.quantize_(network(), target_bits=2.3, **options)
    report = qt.quantize_(network(), target_bits=2.3, encoding=["tq2_0"], **options)
    assert report.bits_per_weight <= 2.3 and "tq2_0" in {row.encoding for row in report.layers}
    # Where a pattern says something of the form, and for convolutions, there are plain formats only.
    model = nn.Sequential(nn.Conv2d(32, 8, 3), nn.Flatten(), nn.Linear(128, 32))
    report = qt.quantize_(
        model,
        calibration=torch.randn(4, 32, 6, 6),
        target_bits=6,
        encoding="q4_k",
        layers={"2": {"block_size": 32}},
    )
    assert all(each.encoding is None for row in report.layers for each in row.candidates)


@torch.no_grad()
def test_the_model_stays_as_it_is_if_something_fails():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(64, 64), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 3:
                raise RuntimeError("enough")
            return self.layer(x)

    model = Failing()
    with pytest.raises(RuntimeError, match="enough"):
        qt.quantize_(model, calibration=batches(3), target_bits=5)
    assert type(model.layer) is nn.Linear


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target_bits": "4"}, TypeError, "quantize_: target_bits is '4'"),
        ({"target_bits": 0}, ValueError, "quantize_: target_bits is 0, expected a finite number above 0"),
        ({"target_bits": float("inf")}, ValueError, "target_bits is inf, expected a finite number above 0"),
        ({"encoding": "q9"}, ValueError, "quantize_: encoding is 'q9', expected one of 'q2_k'"),
        ({"encoding": ["q4_k", 4]}, TypeError, "quantize_: encoding is 4, expected a string"),
        ({"encoding": 4}, TypeError, "quantize_: encoding is 4, expected names of encodings with target_bits"),
        ({"target_error": 0.1}, ValueError, r"target_error is 0\.1 and target_bits 4\.5, expected one of them"),
        ({"calibration": None}, ValueError, "calibration is None, expected inputs of the model with target_bits"),
        (
            {"target_bits": 2},
            ValueError,
            r"target_bits is 2, expected 2\.\d+ or more: the mean of the smallest formats",
        ),
        (
            {"layers": {"*": {"bits": 8}}, "block_size": 64},
            ValueError,
            r"target_bits is 4\.5, expected 8\.\d+ or more",
        ),
    ],
)
def test_errors(options, error, message):
    model = network()
    with pytest.raises(error, match=message):
        qt.quantize_(model, **{"target_bits": 4.5, "scale_dtype": "float16", "calibration": batches(2), **options})
    assert type(model[0]) is nn.Linear


@torch.no_grad()
def test_table_and_plot(tmp_path):
    pytest.importorskip("matplotlib")
    report = qt.quantize_(network(), scale_dtype="float16", calibration=batches(), target_bits=4.5)
    assert "block" in str(report)
    assert f"{report.bits_per_weight:.4g} bits per packed weight" in " ".join(str(report).split())
    figure = report.plot(tmp_path / "widths.png")
    assert (tmp_path / "widths.png").read_bytes()[:4] == b"\x89PNG"
    upper, lower = figure.axes[:2]
    chosen = [row.chosen for row in report.layers]
    marked = np.concatenate([each.get_offsets() for each in upper.collections])
    np.testing.assert_allclose(sorted(map(tuple, marked)), sorted((each.nbytes, each.error) for each in chosen))
    assert [bar.get_height() for bar in lower.patches] == [each.bits for each in chosen]
    assert f"{report.bytes_before:,}" in figure.get_suptitle()
    with pytest.raises(ValueError, match=r"Report\.plot: no layer has candidates"):
        qt.quantize_(network(), bits=8, calibration=batches()).plot()
    with pytest.raises(ValueError, match="expected a name that ends in"):
        report.plot(tmp_path / "widths.txt")


@torch.no_grad()
def test_transformers_saves_and_loads_the_widths(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(0, 60, (2, 12))
    report = qt.quantize_(model, scale_dtype="float16", calibration=tokens, target_bits=5)
    assert {row.bits for row in report.layers if row.bits} - {4, 8}
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@torch.no_grad()
def test_experts_have_one_format():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=60,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    other = copy.deepcopy(model)
    tokens = torch.randint(0, 60, (2, 12))
    report = qt.quantize_(model, method="rtn", calibration=tokens, target_bits=3.8)
    row = next(row for row in report.layers if row.kind == "MixtralExperts")
    experts = [each for each in model.get_submodule(row.name).modules() if isinstance(each, qt.Linear)]
    assert {(each.bits, each.block_size) for each in experts} == {(row.bits, row.block_size)} == {(3, row.block_size)}
    assert row.chosen.nbytes == sum(each.packed.nbytes for each in experts)
    qt.restore_(other, model.state_dict())
    assert torch.equal(other(tokens).logits, model(tokens).logits)
