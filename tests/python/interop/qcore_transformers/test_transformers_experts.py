"""Mixtures of experts in transformers: quantized while loading, saved, opened from packed folders of other programs."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")

import model_folders  # noqa: E402
from architectures import language  # noqa: E402
from architectures.entry import relative_error, results  # noqa: E402
from model_folders import (  # noqa: E402
    awq_folder,
    float_folder,
    float_twin,
    gptq_folder,
    kl,
    logits,
    mixtral,
    quantized,
    rewritten,
)
from safetensors.torch import load_file, save_file  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import qcore  # noqa: E402
import qcore.torch  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.cli import app  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.torch import Experts  # noqa: E402
from qcore.transformers.mixtures import mixtures_of, packed_experts  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402

FLOAT = qt.QcoreConfig(compute="float")
ENTRIES = {entry.name: entry for entry in language.ENTRIES}
MIXTURES = [
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmoe",
    "granitemoe",
    "phimoe",
    "gpt-oss",
    "dbrx",
    "jetmoe",
    "llama4",
    "jamba",
    "deepseek-v2",
    "deepseek-v3",
]
HALF = ["--block-size", 32, "--scale-dtype", "float16"]
LAYER = "model.layers.0.block_sparse_moe.experts"


def qwen(**sizes):
    torch.manual_seed(0)
    options = {"hidden_size": 64, "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    options |= {"num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2}
    config = transformers.Qwen3MoeConfig(**options, vocab_size=96, initializer_range=0.1, **sizes)
    return transformers.Qwen3MoeForCausalLM(config).eval()


MODELS = {"mixtral": mixtral, "qwen": qwen}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return float_folder(tmp_path_factory.mktemp("float") / "model", mixtral())


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """Write the same model with all experts of a projection in one tensor of its file."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    float_folder(folder, model)
    save_file({name: value.clone() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    return folder


def loaded(folder, config=FLOAT, **options):
    options |= {} if config is None else {"quantization_config": config}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def weights_of(model):
    return {name: module.weight for name, module in packed_modules(model)}


def experts_of(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, Experts)}


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_experts_are_those_of_quantize_and_are_saved(tmp_path, name):
    entry = ENTRIES[name]
    model = entry.make()
    float_folder(tmp_path / "float", model)
    options = {"bits": 8, "block_size": 32, "scheme": "asymmetric", "method": "mse", "scale_dtype": "float16"}
    made = type(model).from_pretrained(
        tmp_path / "float", quantization_config=qt.QcoreConfig(**options, compute="float")
    )
    exact = results(model, entry.sample())
    qcore.torch.quantize_(model, **options, compute="float")
    assert experts_of(made)
    assert list(experts_of(made)) == list(experts_of(model))
    mine, other = weights_of(made), weights_of(model)
    inside = [layer for layer in other if ".projections." in layer]
    assert inside == [layer for layer in mine if ".projections." in layer]
    assert all(mine[layer] == other[layer] for layer in inside)
    got = results(made, entry.sample())
    assert relative_error(got, exact) < entry.bound
    for number, each in enumerate((made, model)):
        each.save_pretrained(tmp_path / str(number))
        again = type(model).from_pretrained(tmp_path / str(number))
        assert weights_of(again) == weights_of(each)
        assert relative_error(results(again, entry.sample()), results(each, entry.sample())) == 0
    with open_checkpoint(tmp_path / "0") as checkpoint:
        assert sum(".projections." in name and checkpoint.info(name).format == "qcore" for name in checkpoint) == len(
            inside
        )


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_encoded_experts_are_saved_as_they_are(tmp_path, name):
    entry = ENTRIES[name]
    model = entry.make()
    qcore.torch.quantize_(model, encoding="q4_k", layers={"*": {"bits": 3}} if name == MIXTURES[0] else None)
    assert all(weight.encoding is not None for weight in weights_of(model).values())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert weights_of(again) == weights_of(model)
    assert relative_error(results(again, entry.sample()), results(model, entry.sample())) == 0


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_files_may_have_one_tensor_or_one_per_expert(source, whole, dtype):
    first, second = loaded(source, dtype=dtype), loaded(whole, dtype=dtype)
    assert weights_of(first) == weights_of(second)
    assert len(weights_of(first)) == 2 + 2 * (4 + 4 * 2)
    floats = load_file(source / "model.safetensors")
    joined = torch.cat([floats[f"{LAYER}.3.{name}.weight"] for name in ("w1", "w3")])
    weight = first.model.layers[0].mlp.experts.projections["gate_up_proj"][3].weight
    assert weight == qcore.quantize(joined, bits=4, block_size=32, method="mse", scale_dtype="float16")


def test_shards_and_files_of_torch_save(source, tmp_path):
    expected = weights_of(loaded(source))
    mixtral().save_pretrained(tmp_path / "shards", max_shard_size="200KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    assert weights_of(loaded(tmp_path / "shards")) == expected
    float_folder(tmp_path / "pickled", mixtral())
    torch.save(load_file(tmp_path / "pickled/model.safetensors"), tmp_path / "pickled/pytorch_model.bin")
    (tmp_path / "pickled/model.safetensors").unlink()
    assert weights_of(loaded(tmp_path / "pickled")) == expected


def spoiled(source, target, edit):
    """Copy a folder and edit its tensors."""
    change(float_twin(source, target, {}), edit)
    return target


def test_float_experts_that_are_refused(source, whole, tmp_path):
    def lose(tensors):
        del tensors[f"{LAYER}.3.w2.weight"]

    with pytest.raises(
        qcore.QcoreValueError, match=r"experts.down_proj of the files is \[3, 64, 128\], expected \[4, 64"
    ):
        loaded(spoiled(source, tmp_path / "fewer", lose))

    def spoil(tensors):
        tensors[f"{LAYER}.1.w3.weight"][0, 0] = torch.nan

    with pytest.raises(qcore.QcoreValueError, match=r"0.mlp.experts.projections.gate_up_proj.1.weight: .*(NaN|nan)"):
        loaded(spoiled(source, tmp_path / "nan", spoil))

    def cut(tensors):
        name = "model.layers.1.mlp.experts.down_proj"
        tensors[name] = tensors[name][:, :32].clone()

    with pytest.raises(
        qcore.QcoreValueError, match=r"experts.down_proj of the files is \[4, 32, 128\], expected \[4, 64"
    ):
        loaded(spoiled(whole, tmp_path / "cut", cut))


def test_options_of_experts_and_experts_that_are_left(source, tmp_path):
    config = qt.QcoreConfig(
        modules_to_not_convert=["model.layers.1.mlp.experts"],
        layers={"*.experts.projections.down_proj": {"bits": 8, "compute": "int16"}},
    )
    made = loaded(source, config)
    made.save_pretrained(tmp_path / "saved")
    for model in (made, loaded(tmp_path / "saved", None)):
        assert list(experts_of(model)) == ["model.layers.0.mlp.experts"]
        projections = model.model.layers[0].mlp.experts.projections
        assert {(layer.bits, layer.compute) for layer in projections["down_proj"]} == {(8, "int16")}
        assert {(layer.bits, layer.compute) for layer in projections["gate_up_proj"]} == {(4, "int8")}
        assert model.model.layers[1].mlp.experts.gate_up_proj.shape == (4, 256, 64)
    left = transformers.AutoModelForCausalLM.from_pretrained(source).model.layers[1].mlp.experts
    for model in (made, loaded(tmp_path / "saved", None)):
        assert torch.equal(left.gate_up_proj, model.model.layers[1].mlp.experts.gate_up_proj)
    with pytest.raises(qcore.QcoreValueError, match=r"modules_to_not_convert has 'experts.w1', which matches none"):
        loaded(source, qt.QcoreConfig(modules_to_not_convert=["experts.w1"]))


def test_an_unknown_layout_is_left_with_its_reason(source, monkeypatch, caplog):
    from transformers.models.mixtral import modeling_mixtral

    forward = modeling_mixtral.MixtralExperts.forward
    monkeypatch.setattr(modeling_mixtral.MixtralExperts, "forward", lambda self, *rest: forward(self, *rest) + 1)
    transformers.utils.logging.enable_propagation()
    try:
        made = loaded(source)
    finally:
        transformers.utils.logging.disable_propagation()
    assert "gate_up_proj: MixtralExperts is no layout of experts that is known" in caplog.text
    assert not experts_of(made)
    assert len(weights_of(made)) == 10


def test_generate_and_what_is_refused(source):
    made = loaded(source)
    tokens = made.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, do_sample=False)
    assert tokens.shape == (1, 8)
    with pytest.raises(qcore.QcoreValueError, match=r"fuse_: model.layers.0"):
        qt.fuse_(made.eval())
    with pytest.raises(qcore.QcoreValueError, match=r"dequantize: model.layers.0.mlp.experts is an Experts, expected"):
        made.dequantize()


def packed_by_hand(source, target, asymmetric=False, packed=True):
    """Write a folder in the layout of compressed-tensors, a scale per group, or int8 codes and a scale per row."""
    weights = {"num_bits": 4, "type": "int", "symmetric": not asymmetric, "strategy": "group", "group_size": 32}
    if not packed:
        weights |= {"num_bits": 8, "strategy": "channel", "group_size": None}
    group = {"targets": ["Linear"], "weights": weights}
    group["input_activations"] = None if packed else {"num_bits": 8, "type": "int", "symmetric": True}
    fmt = "pack-quantized" if packed else "int-quantized"
    config = {"quant_method": "compressed-tensors", "format": fmt, "config_groups": {"g": group}, "ignore": ["lm_head"]}

    def encode(layer, matrix):
        made = quantized(matrix, weights["num_bits"], 32 if packed else matrix.shape[1])
        codes, scales = made.codes(), made.scales()
        if not packed:
            return {"weight": codes, "weight_scale": scales}, made.dequantize()
        nibbles = (codes.astype(np.int64) + 8).reshape(len(codes), -1, 8) << 4 * np.arange(8)
        words = nibbles.sum(-1).astype(np.uint32).view(np.int32)
        parts = {"weight_packed": words, "weight_scale": scales, "weight_shape": np.array(matrix.shape)}
        if not asymmetric:
            return parts, made.dequantize()
        zeros = np.random.default_rng(0).integers(-3, 4, scales.shape).astype(np.int64)
        packed_zeros = ((zeros + 8).reshape(-1, 8, zeros.shape[1]) << 4 * np.arange(8)[:, None]).sum(1)
        parts["weight_zero_point"] = packed_zeros.astype(np.uint32).view(np.int32)
        values = (codes - np.repeat(zeros, 32, 1)).astype(np.float32) * np.repeat(scales, 32, 1)
        return parts, values

    return rewritten(source, target, config, encode)


WRITERS = {
    "awq": awq_folder,
    "awq gemv": lambda source, target: awq_folder(source, target, "gemv"),
    "gptq": gptq_folder,
    "gptq v2 of 8 bits": lambda source, target: gptq_folder(source, target, 8, 2),
    "gptq act-order": lambda source, target: gptq_folder(source, target, act_order=True),
    "pack-quantized": packed_by_hand,
    "pack-quantized asymmetric": lambda source, target: packed_by_hand(source, target, True),
    "int-quantized": lambda source, target: packed_by_hand(source, target, packed=False),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", MODELS)
def test_packed_folders_of_other_programs(tmp_path, name, kind):
    source = float_folder(tmp_path / "float", MODELS[name]())
    folder, values = WRITERS[kind](source, tmp_path / "packed")
    assert sum(".experts." in each for each in values) == 2 * 4 * 3
    model = loaded(folder, dtype=torch.float32)
    expected = loaded(float_twin(source, tmp_path / "twin", values), None, dtype=torch.float32)
    assert kl(logits(expected), logits(model)) < 1e-6
    assert len(experts_of(model)) == 2
    for path, module in experts_of(model).items():
        float_module = expected.get_submodule(path)
        is_split = "gate_proj" in module.projections
        assert is_split == (kind == "gptq act-order")
        for expert in range(4):
            parts = [module.projections[each][expert] for each in module.projections if each != "down_proj"]
            rows = np.concatenate([part.weight.dequantize() for part in parts])
            assert np.array_equal(rows, float_module.gate_up_proj[expert].detach().numpy())
            down = module.projections["down_proj"][expert].weight.dequantize()
            assert np.array_equal(down, float_module.down_proj[expert].detach().numpy())
    model.save_pretrained(tmp_path / "saved")
    again = loaded(tmp_path / "saved", None)
    assert weights_of(again) == weights_of(model)
    assert torch.equal(logits(model), logits(again))


def test_activations_of_the_files_count_for_experts(source, tmp_path):
    folder, _ = packed_by_hand(source, tmp_path / "packed", packed=False)
    model = loaded(folder, qt.QcoreConfig())
    assert {layer.compute for layer in model.model.layers[1].mlp.experts.projections["down_proj"]} == {"int8"}


def change(folder, edit):
    """Edit the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_packed_experts_that_are_refused(source, tmp_path):
    folder, _ = awq_folder(source, tmp_path / "missing")

    def drop(tensors):
        for name in [name for name in tensors if name.startswith(f"{LAYER}.2.w3.")]:
            del tensors[name]

    change(folder, drop)
    message = (
        r"packed weights of model.layers.0.mlp.experts and not all of gate_up_proj of expert 2, expected all of them"
    )
    with pytest.raises(qcore.QcoreValueError, match=message):
        loaded(folder)

    folder, _ = awq_folder(source, tmp_path / "fewer")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_local_experts": 3}))
    message = r"packed weight of expert 3 of model.layers.0.mlp.experts, which has 3 experts in the model"
    with pytest.raises(qcore.QcoreValueError, match=message):
        loaded(folder)

    folder, _ = awq_folder(source, tmp_path / "wider")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 256}))
    message = (
        r"experts.0.w1.weight of the files is packed \[128, 64\], expected \[256, 64\] for gate_up_proj of model.lay"
    )
    with pytest.raises(qcore.QcoreValueError, match=message):
        loaded(folder)


def test_packed_experts_without_a_place_are_an_error(source, tmp_path):
    folder, _ = awq_folder(source, tmp_path / "awq")

    def rename(tensors):
        for name in [name for name in tensors if ".w1." in name]:
            tensors[name.replace(".w1.", ".w4.")] = tensors.pop(name)

    change(folder, rename)
    with pytest.raises(qcore.QcoreValueError, match=r"not all of gate_up_proj of expert 0, expected all of them"):
        loaded(folder)


def test_halves_in_different_orders_have_no_bias():
    module = ENTRIES["gpt-oss"].make().model.layers[0].mlp.experts
    parent = torch.nn.ModuleDict({"experts": module})
    mixture = mixtures_of(parent)[0]["experts"]
    rng = np.random.default_rng(0)

    def weight(rows, columns):
        made = quantized(rng.standard_normal((rows, columns)).astype(np.float32))
        return qcore.ReorderedTensor(made, rng.permutation(columns))

    weights = {}
    for name in mixture.sources:
        experts, rows, columns = mixture.shape(name)
        count = 2 if name == "gate_up_proj" else 1
        weights[name] = [[weight(rows // count, columns) for _ in range(count)] for _ in range(experts)]
    with pytest.raises(
        qcore.QcoreValueError, match=r"experts has gate_up_proj_bias and its gate_up_proj is two packed"
    ):
        packed_experts(mixture, weights, lambda projection, expert: "float", torch.device("cpu"))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("kind", ["source", "whole"])
def test_the_command_line_quantizes_experts(request, tmp_path, kind):
    folder = request.getfixturevalue(kind)
    done = run("quantize", folder, tmp_path / "out", "--scheme", "asymmetric", *HALF)
    assert done.exit_code == 0, done.output
    model = loaded(tmp_path / "out", None)
    same = loaded(folder, qt.QcoreConfig(scheme="asymmetric"))
    assert list(weights_of(model)) == list(weights_of(same))
    assert weights_of(model) == weights_of(same)
    assert torch.equal(logits(model), logits(same))
    model.save_pretrained(tmp_path / "saved")
    assert weights_of(loaded(tmp_path / "saved", None)) == weights_of(model)
    name = (
        f"{LAYER}.3.w1.weight" if kind == "source" else "model.layers.0.mlp.experts.projections.gate_up_proj.3.weight"
    )
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert checkpoint.info(name).format == "qcore"


@pytest.mark.parametrize("fmt", ["awq", "gptq"])
def test_the_command_line_writes_experts_in_other_layouts(source, whole, tmp_path, fmt):
    done = run("quantize", source, tmp_path / "out", "--format", fmt, *HALF)
    assert done.exit_code == 0, done.output
    model = loaded(tmp_path / "out", FLOAT)
    assert len(experts_of(model)) == 2
    same = loaded(source, qt.QcoreConfig(embeddings=False, modules_to_not_convert=["lm_head"]))
    for name, weight in weights_of(same).items():
        assert np.array_equal(weights_of(model)[name].dequantize(), weight.dequantize())
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert checkpoint.info(f"{LAYER}.3.w1.weight").format.startswith(fmt)

    done = run("quantize", whole, tmp_path / "refused", "--format", fmt, *HALF)
    assert done.exit_code == 1
    message = str(done.exception)
    assert "model.layers.0.mlp.experts.down_proj has 4 experts in one tensor, expected one tensor per expert" in message
    done = run("quantize", whole, tmp_path / "left", "--format", fmt, "--exclude", "*.experts.*", *HALF)
    assert done.exit_code == 0, done.output
    assert not experts_of(loaded(tmp_path / "left", FLOAT))


def test_the_command_line_leaves_all_of_a_mixture_or_nothing(source, tmp_path):
    done = run("quantize", source, tmp_path / "out", "--exclude", "*.0.block_sparse_moe.*.w2.weight")
    assert done.exit_code == 1
    assert f"{LAYER}.0.w2.weight stays in floating point (it is not chosen) and " in str(done.exception)
    assert "expected the same of all weights of the experts model.layers.0.mlp.experts" in str(done.exception)
    done = run("quantize", source, tmp_path / "out", "--exclude", "*.0.block_sparse_moe.experts.*", *HALF)
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["modules_to_not_convert"] == ["model.layers.0.mlp.experts"]
    assert list(experts_of(loaded(tmp_path / "out", None))) == ["model.layers.1.mlp.experts"]


def test_the_command_line_leaves_transposed_experts(tmp_path):
    float_folder(tmp_path / "float", ENTRIES["gpt-oss"].make())
    done = run("quantize", tmp_path / "float", tmp_path / "out", *HALF)
    assert done.exit_code == 0, done.output
    assert not experts_of(loaded(tmp_path / "out", None))


MEASURE = """
    import sys, ctypes
    import torch, transformers
    import qcore.transformers as qt
    from qcore.transformers.modules import packed_modules

    small, large = sys.argv[1:]
    config = qt.QcoreConfig(embeddings=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    load(small, quantization_config=config)  # whatever is imported and made once

    def status(key):
        return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

    ctypes.CDLL(None).malloc_trim(0)
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    model = load(large, quantization_config=config)
    peak = status("VmHWM") - before
    weights = sum(module.weight.nbytes for _, module in packed_modules(model))
    print(peak, weights + sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
@pytest.mark.parametrize("is_whole", [False, True])
def test_peak_memory_is_the_final_size_and_a_tensor(source, tmp_path, is_whole):
    large = mixtral(hidden_size=512, intermediate_size=1024, num_local_experts=16, num_hidden_layers=4)
    float_folder(tmp_path / "large", large)
    if is_whole:
        save_file(
            {name: value.clone() for name, value in large.state_dict().items()}, tmp_path / "large/model.safetensors"
        )
    largest = max(parameter.nbytes for parameter in large.parameters())
    environment = os.environ | {"PYTHONPATH": os.path.dirname(model_folders.__file__), "QCORE_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(source), str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    peak, final = map(int, done.stdout.split())
    assert final < 0.2 * sum(parameter.nbytes for parameter in large.parameters())
    assert peak < final + largest, (peak, final, largest)
