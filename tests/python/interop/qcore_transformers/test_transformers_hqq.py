"""Folders of HQQ, as transformers saves them, opened in transformers with qcore's kernels."""

import json
import os

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")

from model_folders import float_folder, float_twin, kl, logits, mixtral, replaced, rewritten  # noqa: E402
from packed_layers import hqq  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers.core_model_loading import WeightConverter  # noqa: E402

import qcore  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.formats.checkpoint.layers import hqq as hqq_parts  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402
from qcore.transformers.operations import ReadPacked  # noqa: E402
from qcore.transformers.packed_folders import packed_folder  # noqa: E402

FLOAT = qt.QcoreConfig(compute="float")


def hqq_folder(source, target, bits, **options):
    weights = {"nbits": bits, "group_size": 32, "channel_wise": True, "optimize": True, "axis": 1}
    quant_config = {"weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None}
    config = {"quant_config": quant_config, "quant_method": "hqq", "skip_modules": ["lm_head"]}
    return rewritten(source, target, config, lambda layer, matrix: hqq.layer(matrix, bits, **options))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return float_folder(tmp_path_factory.mktemp("float") / "model")


@pytest.fixture(autouse=True)
def disabled():
    yield
    qt.disable()


def loaded(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=FLOAT, **options)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_models(source, tmp_path, bits, dtype):
    folder, values = hqq_folder(source, tmp_path / "hqq", bits, dtype=dtype)
    model = loaded(folder, dtype=torch.float32)
    found = dict(packed_modules(model))
    assert len(found) == len(values)
    for name, value in values.items():
        weight = found[name.removesuffix(".weight")].weight
        assert weight.bits == bits
        assert np.array_equal(weight.dequantize(), value), name
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6
    model.save_pretrained(tmp_path / "saved")
    with open_checkpoint(tmp_path / "saved") as checkpoint:
        for name, value in values.items():
            assert np.array_equal(checkpoint[name].dequantize(), value)


def test_folders_with_state_dicts_of_torch(source, tmp_path):
    folder, values = hqq_folder(source, tmp_path / "hqq", 3)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    model = loaded(folder, dtype=torch.float32)
    assert len(dict(packed_modules(model))) == len(values)
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6


def test_experts(tmp_path):
    source = float_folder(tmp_path / "float", mixtral())
    folder, values = hqq_folder(source, tmp_path / "hqq", 4)
    assert sum("experts" in name for name in values) == 24
    twin = float_twin(source, tmp_path / "twin", values)
    expected = transformers.AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32)
    assert kl(logits(expected), logits(loaded(folder, dtype=torch.float32))) < 1e-6


def test_enable(source, tmp_path):
    from transformers.quantizers import auto

    before = dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING), dict(auto.AUTO_QUANTIZER_MAPPING)
    folder, values = hqq_folder(source, tmp_path / "hqq", 4)
    qt.enable("hqq", config=FLOAT)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6
    qt.disable()
    assert before == (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING)


def test_a_parameter_named_like_a_part_of_another_module_stays(source, tmp_path):
    """HQQ's scale, zero and shape are common names, which patterns must not take from other modules."""
    folder, _ = hqq_folder(source, tmp_path / "hqq", 4)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    patterns, target = packed_folder([folder / "model.safetensors"], config).patterns([])
    converter = WeightConverter(patterns, target, [ReadPacked(None)])
    layer = "model.layers.1.mlp.up_proj"
    for part in hqq_parts.PARTS:
        assert converter.rename_source_key(f"{layer}.{part}")[0] == f"{layer}.weight"
    for name in ("model.norm.scale", "model.layers.1.mlp.scale", f"{layer}.bias", "model.layers.1.zero"):
        assert converter.rename_source_key(name) == (name, None)


def test_hostile_folders_name_file_and_tensor(source, tmp_path):
    folder, _ = hqq_folder(source, tmp_path / "hqq", 4)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    layer = "model.layers.1.mlp.up_proj"
    save_file({name: each for name, each in tensors.items() if name != f"{layer}.zero"}, file, {"format": "pt"})
    with pytest.raises(
        qcore.QcoreValueError, match=rf"model\.safetensors: layer '{layer}' .* has no tensor {layer}\.z"
    ):
        loaded(folder)
    save_file(tensors | {f"{layer}.scale": torch.full((256, 1), torch.inf)}, file, {"format": "pt"})
    with pytest.raises(qcore.QcoreValueError, match=rf"model\.safetensors: tensor '{layer}\.weight': .*scale has inf"):
        loaded(folder)
    save_file(tensors | {f"{layer}.shape": torch.tensor([64, 128])}, file, {"format": "pt"})
    with pytest.raises(
        qcore.QcoreValueError, match=rf"{layer}\.weight of the files .* \[64, 128\], expected \[128, 64\]"
    ):
        loaded(folder)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_packages_own_layers(tmp_path, bits, dtype):
    """HQQ rounds its result in the dtype of its computation: float64 here, which holds every product."""
    quantize = pytest.importorskip("hqq.core.quantize", reason="HQQ is not installed")
    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 24, bias=False)
    config = quantize.BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
    layer = quantize.HQQLinear(linear, config, compute_dtype=dtype, device="cpu", del_orig=False)
    state = layer.state_dict()
    ours, _ = hqq.layer(linear.weight.detach().numpy(), bits, 64)
    forms = {part: (torch.from_numpy(each).dtype, each.shape) for part, each in ours.items()}
    forms |= {part: (dtype, forms[part][1]) for part in ("scale", "zero")}
    given = {part: (each.dtype, tuple(each.shape)) for part, each in state.items()}
    assert given | {"compute_dtype": forms["compute_dtype"]} == forms
    save_file({f"fc.{part}": each.contiguous() for part, each in state.items()}, tmp_path / "model.safetensors")
    meta = layer.meta | {"compute_dtype": torch.float64}
    expected = quantize.Quantizer.dequantize(layer.W_q, meta).float().numpy()
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == ["fc.weight"]
        assert np.array_equal(checkpoint["fc.weight"].dequantize(), expected)
