"""quantize_(rotation="hadamard") of language models: what is folded, that nothing else changes, what is not folded."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fused_models import tiny_models  # noqa: E402

import qcore  # noqa: E402
import qcore.torch as qt  # noqa: E402
from qcore.torch.conversion import rotation_folding  # noqa: E402
from qcore.torch.conversion.calibration import relative_error  # noqa: E402
from qcore.torch.conversion.rotation_folding import find_folding  # noqa: E402
from qcore.torch.module import QuantizedModule  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:quantize_")

FOLDED = ["llama", "llama-biases", "qwen2", "qwen3", "mistral", "phi3", "gemma", "granite", "smollm3", "helium"]
WITHOUT_DOWN = {"*.down_proj": {"rotation": None}}
IDS = torch.arange(40).view(2, 20) * 37 % 128


def model(name="llama", dtype=torch.float32, **options):
    torch.manual_seed(0)
    config = tiny_models.config("Llama", **options) if options else tiny_models.CONFIGS[name]()
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.0 if "embed" in key else parameter.shape[1] ** -0.5))
    return made.to(dtype).eval()


def logits(of):
    with torch.no_grad():
        return of(IDS).logits.float()


def error(of, expected):
    return relative_error([logits(of)], [expected])


@pytest.mark.parametrize("name", FOLDED)
def test_the_float_model_computes_the_same(name):
    made = model(name)
    before, expected = copy.deepcopy(made.state_dict()), logits(made)
    folding = find_folding(made)
    assert (folding.reason, folding.has_values) == ("", True)
    assert all(torch.equal(each, before[key]) for key, each in made.state_dict().items())  # the trial leaves no trace
    folding.apply()
    assert error(made, expected) < 3e-6
    neutral = 0.0 if name == "gemma" else 1.0
    assert all(bool((each == neutral).all()) for key, each in made.state_dict().items() if "layernorm" in key)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_are_rounded_once(dtype):
    made = model(dtype=dtype)
    expected = logits(made)
    find_folding(made).apply()
    assert error(made, expected) < (3e-3 if dtype == torch.float16 else 3e-2)
    assert made.lm_head.weight.dtype == dtype


def test_sizes_that_are_no_powers_of_two():
    made = model(hidden_size=96, num_attention_heads=4, head_dim=24, intermediate_size=80)
    expected = logits(made)
    weight = made.model.embed_tokens.weight.detach().clone()
    find_folding(made).apply()
    assert error(made, expected) < 3e-6
    assert torch.equal(made.model.embed_tokens.weight, qcore.hadamard(weight, 32))


def kinds(of):
    """Return the classes of the quantized modules, by name, of those that are in no other."""
    found = {name: module for name, module in of.named_modules() if isinstance(module, QuantizedModule)}
    return {name: type(each).__name__ for name, each in found.items() if name.rpartition(".")[0] not in found}


@pytest.mark.parametrize("method", ["rtn", "awq", "gptq"])
def test_only_the_last_layer_of_the_mlp_rotates_online(method):
    made = model("llama-biases")
    exact, plain, online = (copy.deepcopy(made) for _ in range(3))
    options = {"bits": 8, "block_size": 32, "method": method, "progress": False}
    options["calibration"] = IDS
    report = qt.quantize_(made, rotation="hadamard", **options)
    nbytes = exact.lm_head.weight.nbytes
    assert report.rotation == (
        f"folded into 20 layers, online in 3; the head has a weight of its own now, {nbytes:,} bytes before "
        "quantization"
    )
    assert "Rotation: folded into 20" in str(report).replace("\n", " ")
    rotated = [name for name, kind in kinds(made).items() if kind == "RotatedLinear"]
    assert rotated == [f"model.layers.{i}.mlp.down_proj" for i in range(3)]
    notes = {row.name: row.note for row in report.layers}
    assert notes["model.layers.0.mlp.down_proj"].startswith("rotated") and "rotation folded" in notes["lm_head"]
    assert abs(report.model_error - error(made, logits(exact))) < 1e-6
    assert report.model_error < 0.03 and made.config.tie_word_embeddings is False
    other = qt.quantize_(online, rotation="hadamard_online", **options)
    assert other.rotation == "online in 21 layers"
    assert report.model_error < 1.2 * other.model_error
    qt.quantize_(plain, **options)
    restored = copy.deepcopy(exact)
    qt.restore_(restored, made.state_dict())
    assert torch.equal(logits(restored), logits(made)) and restored.config.tie_word_embeddings is False
    del plain


def with_outliers(of, factor=30):
    """Make one channel of 64 of each norm's output larger, and undo that in the weights that read it."""
    readers = [("input_layernorm", "self_attn", ("q_proj", "k_proj", "v_proj"))]
    readers.append(("post_attention_layernorm", "mlp", ("gate_proj", "up_proj")))
    with torch.no_grad():
        for layer in of.model.layers:
            for norm, parent, names in readers:
                layer.get_submodule(norm).weight[5] *= factor
                for name in names:
                    layer.get_submodule(f"{parent}.{name}").weight[:, 5] /= factor
        of.model.norm.weight[5] *= factor
        of.lm_head.weight[:, 5] /= factor
    return of


def test_outliers_cost_nothing_once_rotated():
    """int8 activations with 1.6% of the channels 30 times larger: within 1.2 times the error without outliers."""
    options = {"bits": 8, "block_size": 1 << 20, "method": "mse", "calibration": IDS, "progress": False}
    quiet = model()
    loud = with_outliers(copy.deepcopy(quiet))
    torch.testing.assert_close(logits(loud), logits(quiet), rtol=1e-3, atol=1e-3)  # the same function
    without = qt.quantize_(quiet, **options).model_error
    plain = qt.quantize_(copy.deepcopy(loud), **options).model_error
    rotated = qt.quantize_(loud, rotation="hadamard", **options).model_error
    assert rotated < 1.2 * without and plain > 2 * without, (without, plain, rotated)


def test_without_online_layers_the_model_is_a_plain_one(tmp_path):
    from qcore.transformers import fuse_

    made = model("llama-biases")
    exact = logits(made)
    form = {"bits": 8, "block_size": 32, "method": "rtn", "scale_dtype": "float32"}
    report = qt.quantize_(made, rotation="hadamard", layers=WITHOUT_DOWN, progress=False, **form)
    assert report.rotation.startswith("folded into 20 layers, online in 0;")
    assert set(kinds(made).values()) == {"Embedding", "Linear"}
    assert error(made, exact) < 0.03
    made.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert torch.equal(logits(loaded), logits(made))
    fuse_(loaded)
    assert error(loaded, logits(made)) < 1e-3


def test_ends_in_floating_point_are_untied():
    made = model("llama-biases")
    exact, fresh = logits(made), copy.deepcopy(made)
    options = {"bits": 8, "skip": ("lm_head",), "embeddings": False, "rotation": "hadamard", "progress": False}
    report = qt.quantize_(made, **options)
    notes = {row.name: row.note for row in report.layers}
    assert notes["lm_head"] == "exclude has 'lm_head'; rotation folded"
    assert error(made, exact) < 0.03 and made.lm_head.weight is not made.model.embed_tokens.weight
    made.tie_weights()
    assert error(made, exact) < 0.03
    qt.restore_(fresh, made.state_dict())
    assert torch.equal(logits(fresh), logits(made))


def test_target_bits_and_smooth():
    made = model(num_hidden_layers=1)
    exact, before = logits(made), copy.deepcopy(made.state_dict())
    options = {"calibration": [IDS], "method": "rtn", "rotation": "hadamard", "progress": False}
    with pytest.raises(qcore.QcoreValueError, match="target_bits is 1"):
        qt.quantize_(made, target_bits=1, **options)
    assert all(torch.equal(each, before[key]) for key, each in made.state_dict().items())
    report = qt.quantize_(made, target_bits=7, smooth=True, layers=WITHOUT_DOWN, **options)
    assert report.bits_per_weight <= 7 and error(made, exact) < 0.1
    notes = {row.name: row.note for row in report.layers}
    assert "smooth" not in notes["model.layers.0.self_attn.q_proj"]
    assert "smooth" in notes["model.layers.0.mlp.down_proj"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda of: of.model.layers[1].mlp.add_module("gate", torch.nn.Linear(64, 4)), "layers.1.mlp has a module"),
        (lambda of: of.model.layers[0].add_module("mlp", torch.nn.Identity()), "gate_proj is missing"),
        (lambda of: of.model.add_module("norm", torch.nn.LayerNorm(64)), "norm is a LayerNorm, expected an RMS norm"),
        (lambda of: of.lm_head.register_forward_hook(lambda *_: None), "the head: it has forward hooks"),
        (lambda of: setattr(of.model.layers[1].mlp, "up_proj", of.model.layers[0].mlp.up_proj), "in several places"),
        (lambda of: of.register_buffer("kept", of.lm_head.weight.data), "a weight of a Linear is shared"),
        (lambda of: setattr(of.model, "norm", Offset(64)), "computes something else than an RMS norm"),
        (lambda of: of.model.register_forward_hook(lambda m, a, y: plus_one(y)), "the logits would change"),
    ],
    ids=["module", "missing", "layer norm", "hook", "shared", "buffer", "offset", "logits"],
)
def test_what_is_not_folded_rotates_online(change, reason):
    made = model()
    change(made)
    report = qt.quantize_(made, bits=8, rotation="hadamard", progress=False)
    assert report.rotation.startswith("online in ") and reason in report.rotation, report.rotation
    assert "folded" not in str([row.note for row in report.layers])
    assert "RotatedLinear" in kinds(made).values()


class Offset(torch.nn.Module):
    """A norm that adds something."""

    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True)) + 1


def plus_one(y):
    y.last_hidden_state = y.last_hidden_state + torch.arange(64.0)
    return y


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "exaone4", "glm4"])
def test_norms_of_what_a_layer_adds(name):
    report = qt.quantize_(model(name), bits=8, rotation="hadamard", progress=False)
    assert "not folded: layers.0 has a module 'post_" in report.rotation.replace("pre_", "post_")


def test_other_models_are_rotated_online():
    made = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 8))
    report = qt.quantize_(made, bits=8, rotation="hadamard", progress=False)
    assert report.rotation == "online in 2 layers, not folded: Sequential is no language model of transformers"
    assert '"rotation": "online in 2 layers' in report.to_json()
    plain = qt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)), bits=8, progress=False)
    assert plain.rotation == ""


def test_values_that_cannot_be_rotated():
    made = model()
    expected = logits(made)
    for layer in made.model.layers:
        layer.self_attn.head_dim = torch.tensor(16)  # what is no integer tells nothing
    folding = find_folding(made)
    assert not folding.has_values and folding.reason.startswith("layers.0.self_attn tells no head_dim")
    report = qt.quantize_(made, bits=8, rotation="hadamard", progress=False)
    assert "online in 6; that of the values not folded: " in report.rotation
    assert type(made.model.layers[0].self_attn.o_proj) is qt.RotatedLinear
    assert error(made, expected) < 0.03


def test_an_interrupted_fold_is_finished(monkeypatch):
    made = model()
    expected, calls = logits(made), []
    folding = find_folding(made)
    rotate = rotation_folding.hadamard

    def interrupted(*arguments, **options):
        calls.append(0)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return rotate(*arguments, **options)

    monkeypatch.setattr(rotation_folding, "hadamard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folding.apply()
    assert error(made, expected) < 3e-6
