"""Folders and files that other programs have quantized, opened in transformers with qcore's kernels."""

import json
import os

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")

from model_folders import (  # noqa: E402
    awq_folder,
    float_folder,
    gptq_folder,
    kl,
    llama,
    logits,
    replaced,
    rewritten,
)

import qcore  # noqa: E402
import qcore.torch  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.transformers.modules import ReorderedLinear, packed_modules  # noqa: E402
from qcore.transformers.packed_folders import packed_folder  # noqa: E402

FLOAT = qt.QcoreConfig(compute="float")
LAYERS = 14


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return float_folder(tmp_path_factory.mktemp("float") / "model")


@pytest.fixture(autouse=True)
def disabled():
    yield
    qt.disable()


def loaded(folder, config=FLOAT, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, **options)


def check_same(folder, values, source, **options):
    """Check that the folder has these weights, and the logits of a float model that has them."""
    model = loaded(folder, dtype=torch.float32, **options)
    found = dict(packed_modules(model))
    assert len(found) == len(values)
    for name, value in values.items():
        weight = found[name.removesuffix(".weight")].weight
        assert np.array_equal(weight.dequantize(), value), name
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6
    return model


@pytest.mark.parametrize("version", ["gemm", "gemv"])
def test_awq(source, tmp_path, version):
    folder, values = awq_folder(source, tmp_path / "awq", version)
    assert len(values) == LAYERS
    check_same(folder, values, source)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq(source, tmp_path, bits, version, act_order):
    folder, values = gptq_folder(source, tmp_path / "gptq", bits, version, act_order)
    model = check_same(folder, values, source)
    layer = model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, ReorderedLinear) == act_order
    assert (layer.weight.dtype, layer.weight.device) == (torch.float32, torch.device("cpu"))


def test_gptq_without_a_version_is_version_1_with_a_warning(source, tmp_path):
    folder, values = gptq_folder(source, tmp_path / "gptq", checkpoint_format=None)
    with pytest.warns(UserWarning, match=r"has no 'checkpoint_format': 'gptq' is assumed, version 1"):
        check_same(folder, values, source)


def test_what_was_opened_is_saved_in_qcores_layout(source, tmp_path):
    folder, values = gptq_folder(source, tmp_path / "gptq", act_order=True)
    model = loaded(folder)
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(model), logits(again))
    with open_checkpoint(tmp_path / "saved") as checkpoint:
        for name, value in values.items():
            assert np.array_equal(checkpoint[name].dequantize(), value)


def test_enable_needs_no_argument_and_disable_puts_back(source, tmp_path):
    from transformers.quantizers import auto

    before = dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING), dict(auto.AUTO_QUANTIZER_MAPPING)
    folder, values = awq_folder(source, tmp_path / "awq")
    qt.enable("awq", config=FLOAT)
    assert auto.AUTO_QUANTIZATION_CONFIG_MAPPING["gptq"] is before[0]["gptq"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6
    assert model.model.layers[0].self_attn.q_proj.compute == "float"
    qt.disable()
    assert before == (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING)
    loaded(folder)
    assert before == (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING)
    with pytest.raises(qcore.QcoreValueError, match=r"'quanto' is no method that qcore reads"):
        qt.enable("quanto")


def ct_config(fmt="pack-quantized", activations=None, **weights):
    base = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "weights": base | weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def ct_folder(source, target, config, dtype=torch.float16, seed=0):
    """Make a folder that compressed-tensors itself has packed, and the values that it decompresses, in float32."""
    compressors = pytest.importorskip("compressed_tensors.compressors")
    from compressed_tensors.quantization import QuantizationScheme

    group = config["config_groups"]["group_0"]
    scheme = QuantizationScheme.model_validate(group)
    fmt = config["format"]
    compressor = compressors.BaseCompressor.get_value_from_registry(fmt)
    weights = group["weights"]
    size, bits = weights.get("group_size"), weights["num_bits"]
    rng = np.random.default_rng(seed)

    def encode(layer, matrix):
        n, k = matrix.shape
        blocks = k // size if weights["strategy"] == "group" else 1
        highest = 2 ** (bits - 1) - 1
        largest = np.abs(matrix.reshape(n, blocks, -1)).max(-1)
        scale = torch.from_numpy(largest / highest).to(dtype)
        state = {"weight": torch.from_numpy(matrix).to(dtype), "weight_scale": scale}
        zeros = np.zeros((n, blocks), np.int8)
        if not weights["symmetric"]:
            zeros = rng.integers(-3, 4, (n, blocks)).astype(np.int8)
            state["weight_zero_point"] = torch.from_numpy(zeros)
        parts = compressor.compress(state, scheme)
        back = compressor.decompress(dict(parts), scheme)["weight"]
        assert back.dtype == dtype
        codes = quantized_codes(parts, bits, (n, k))
        wide = np.repeat(scale.float().numpy(), k // blocks, 1)
        values = (codes - np.repeat(zeros, k // blocks, 1).astype(np.float32)) * wide
        assert torch.equal(torch.from_numpy(values).to(dtype), back)
        return parts, values

    return rewritten(source, target, config, encode)


def quantized_codes(parts, bits, shape):
    if "weight_packed" not in parts:
        return parts["weight"].float().numpy()
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    return unpack_from_int32(parts["weight_packed"], bits, torch.Size(shape)).float().numpy()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["group", "channel"])
@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors_packed(source, tmp_path, dtype, symmetric, strategy, bits):
    size = 32 if strategy == "group" else None
    config = ct_config(symmetric=symmetric, strategy=strategy, group_size=size, num_bits=bits)
    folder, values = ct_folder(source, tmp_path / "ct", config, dtype)
    model = loaded(folder, dtype=torch.float32)
    found = dict(packed_modules(model))
    assert len(found) == LAYERS
    for name, value in values.items():
        given = found[name.removesuffix(".weight")].weight.dequantize()
        assert np.array_equal(given, value.astype(np.float32)), name
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6


TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


@pytest.mark.parametrize(
    ("activations", "given", "compute"),
    [
        (TOKEN, None, "int8"),
        (TOKEN | {"symmetric": False}, None, "int8_asym"),
        (TOKEN, "float", "float"),
        (None, None, "float"),
    ],
)
def test_int8_weights_and_activations(source, tmp_path, activations, given, compute):
    config = ct_config("int-quantized", activations, num_bits=8, strategy="channel", group_size=None)
    folder, values = ct_folder(source, tmp_path / "ct", config, torch.float32)
    model = loaded(folder, qt.QcoreConfig(compute=given), dtype=torch.float32)
    layer = model.model.layers[1].mlp.down_proj
    assert (layer.compute, layer.bits, layer.block_size) == (compute, 8, 128)
    assert np.array_equal(layer.weight.dequantize(), values["model.layers.1.mlp.down_proj.weight"])
    assert kl(logits(replaced(source, values)), logits(model)) < (1e-6 if compute == "float" else 0.05)
    with open_checkpoint(folder) as checkpoint:
        own = checkpoint.info("model.layers.1.mlp.down_proj.weight").compute
        assert own == (compute if given is None else "int8")
        assert checkpoint.info("model.norm.weight").compute is None


def test_a_layer_may_ask_for_another_compute_mode_than_its_files(source, tmp_path):
    config = ct_config("int-quantized", TOKEN, num_bits=8, strategy="channel", group_size=None)
    folder, _ = ct_folder(source, tmp_path / "ct", config, torch.float32)
    model = loaded(folder, qt.QcoreConfig(layers={"down_proj": {"compute": "float"}}), dtype=torch.float32)
    mlp = model.model.layers[1].mlp
    assert (mlp.down_proj.compute, mlp.up_proj.compute) == ("float", "int8")


@pytest.mark.parametrize("make", [awq_folder, gptq_folder])
def test_weight_only_files_compute_in_float_unless_asked(source, tmp_path, make):
    folder, _ = make(source, tmp_path / "packed")
    for config, compute in ((qt.QcoreConfig(), "float"), (qt.QcoreConfig(compute="int8"), "int8")):
        model = loaded(folder, config)
        assert {module.compute for _, module in packed_modules(model) if hasattr(module, "compute")} == {compute}
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.info("model.layers.0.mlp.up_proj.weight").compute == "float"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "float-quantized"}, "format is 'float-quantized', expected pack-quantized"),
        ({"config_groups": {}}, "has no 'config_groups'"),
        ({"config_groups": {"g": {"targets": ["Linear"]}}}, r"config_groups\['g'\] has no 'weights'"),
    ],
)
def test_compressed_tensors_that_are_refused(source, tmp_path, change, message):
    folder, _ = ct_folder(source, tmp_path / "ct", ct_config())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(qcore.QcoreValueError, match=message):
        loaded(folder)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("type", "float", r"its weight is I32 .*, expected U8 \[N, K / 2\]"),
        ("type", "other", "weights.type is 'other', expected 'int'"),
        ("num_bits", 3, "weights.num_bits is 3, expected 4 or 8"),
        ("strategy", "block", "weights.strategy is 'block', expected 'group' or 'channel' or 'tensor'"),
        ("group_size", 0, "weights.group_size is 0, expected a positive integer"),
    ],
)
def test_compressed_weights_that_are_refused(source, tmp_path, field, value, message):
    folder, _ = ct_folder(source, tmp_path / "ct", ct_config())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"][field] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(qcore.QcoreValueError, match=message):
        loaded(folder)


def test_a_missing_part_is_an_error(source, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, _ = awq_folder(source, tmp_path / "awq")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.qzeros"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(qcore.QcoreValueError, match=r"layer 'model.layers.1.mlp.up_proj'.* has no tensor .*qzeros"):
        loaded(folder)


def test_a_missing_field_is_an_error(source, tmp_path):
    folder, _ = awq_folder(source, tmp_path / "awq")
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]["group_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(qcore.QcoreValueError, match="has no 'group_size', expected one"):
        loaded(folder)


def test_another_shape_is_an_error(source, tmp_path):
    folder, _ = awq_folder(source, tmp_path / "awq")
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 256
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(qcore.QcoreValueError, match=r"down_proj.* is awq gemm \[64, 128\], expected \[64, 256\]"):
        loaded(folder)


def test_another_method_is_an_error(source, tmp_path):
    folder, _ = awq_folder(source, tmp_path / "awq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "quanto"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(qcore.QcoreValueError, match="quantized with 'quanto' and quantization_config is a QcoreConfig"):
        loaded(folder)


def test_bits_of_the_config_do_not_count(source, tmp_path):
    folder, values = awq_folder(source, tmp_path / "awq")
    model = loaded(folder, qt.QcoreConfig(bits=8, compute="float"), dtype=torch.float32)
    assert model.model.layers[0].mlp.up_proj.bits == 4
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6


def test_float16_hosts(tmp_path):
    source = float_folder(tmp_path / "half", llama(dtype=torch.float16))
    folder, values = awq_folder(source, tmp_path / "awq")
    model = loaded(folder)
    assert model.dtype == torch.float16
    assert logits(model).dtype == torch.float16
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-3


@pytest.mark.parametrize("writer", [awq_folder, gptq_folder])
def test_files_of_torch_save(source, tmp_path, writer):
    from safetensors.torch import load_file

    folder, values = writer(source, tmp_path / "packed")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    check_same(folder, values, source)


class Foreign:
    """No tensor: torch refuses to unpickle it."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [1],
            r"pytorch_model.bin holds a list, expected a dictionary of tensors as torch.save writes it, or safetensors",
        ),
        ({"x.qweight": 1}, r"'x.qweight' is int, expected a dictionary of tensors"),
        ({"x": torch.zeros(1, dtype=torch.complex64)}, r"'x' is torch.complex64, expected a dictionary of tensors"),
        ({"x": Foreign()}, r"can't be read safely, expected a dictionary of tensors"),
    ],
)
def test_files_of_torch_save_that_are_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(qcore.QcoreValueError, match=message):
        packed_folder([tmp_path / "pytorch_model.bin"], {"quant_method": "awq"})


def test_files_of_two_kinds_are_refused(tmp_path):
    files = [tmp_path / "model.safetensors", tmp_path / "pytorch_model.bin"]
    with pytest.raises(
        qcore.QcoreValueError, match=r"in model.safetensors and 1 other files, expected .safetensors files"
    ):
        packed_folder(files, {"quant_method": "awq"})


def test_bfloat16_of_torch_save_is_widened(tmp_path):
    from qcore.transformers.pickled_files import read_pickled

    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    torch.save({"x": values.t()}, tmp_path / "x.bin")
    section = read_pickled(tmp_path / "x.bin").sections["x"]
    assert (section.dtype, section.shape, section.nbytes) == ("BF16", (3, 2), 12)
    assert np.array_equal(section.widened(), values.t().float().numpy())
