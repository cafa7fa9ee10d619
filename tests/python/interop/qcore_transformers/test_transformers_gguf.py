"""GGUF files in transformers: weights unchanged in all types, rows permuted back, names mapped."""

import os

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")
gguf = pytest.importorskip("gguf")

from gguf_models import sizes, write  # noqa: E402
from model_folders import kl, llama, logits  # noqa: E402

import qcore  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.formats import gguf_blocks  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402

FLOAT = qt.QcoreConfig(compute="float")


def opened(path, config=FLOAT, **options):
    options |= {} if config is None else {"quantization_config": config}
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **options)


def expected_logits(values, tie=False):
    model = llama(**sizes(tie))
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(torch.from_numpy(np.array(value)))
    return logits(model)


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
def test_every_type_is_exact(tmp_path, kind):
    values = write(tmp_path / "m.gguf", {"all": kind})
    model = opened(tmp_path / "m.gguf")
    found = dict(packed_modules(model))
    assert len(found) == 9
    for name, module in found.items():
        assert np.array_equal(module.weight.dequantize(), values[f"{name}.weight"]), name
    in_file = sum(tensor.n_bytes for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors if len(tensor.shape) == 2)
    alignment = len(found) * 5 * 64
    assert sum(module.packed.nbytes for module in found.values()) <= in_file * 1.01 + alignment
    assert kl(expected_logits(values), logits(model)) < 1e-6


def test_other_types_become_float_with_a_note(tmp_path, caplog):
    kinds = {"all": "Q4_0", "ffn_up": "IQ3_S"}
    values = write(tmp_path / "m.gguf", kinds)
    transformers.utils.logging.enable_propagation()
    try:
        model = opened(tmp_path / "m.gguf")
    finally:
        transformers.utils.logging.disable_propagation()
    assert "1 tensors of m.gguf become torch.float32" in caplog.text
    assert "blk.0.ffn_up.weight (IQ3_S)" in caplog.text
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert kl(expected_logits(values), logits(model)) < 1e-6


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K"])
def test_tied_heads_share_the_embedding(tmp_path, kind):
    values = write(tmp_path / "m.gguf", {"all": "Q4_K", "token_embd": kind}, tie=True)
    model = opened(tmp_path / "m.gguf")
    head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
    assert np.shares_memory(head.storage(), embedding.storage())
    assert kl(expected_logits(values, tie=True), logits(model)) < 1e-6
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("kinds", [{"all": "Q4_K"}, {"all": "Q4_K", "attn_v": "Q6_K", "ffn_down": "NVFP4"}], ids=str)
def test_fused_models_keep_the_bytes(tmp_path, kinds):
    write(tmp_path / "m.gguf", kinds)
    model = opened(tmp_path / "m.gguf", qt.QcoreConfig(compute="int8"))
    expected = logits(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = sum(module.packed.nbytes for _, module in packed_modules(model))
    qt.fuse_(model)
    torch.testing.assert_close(logits(model), expected, atol=1e-3, rtol=1e-3)
    qt.unfuse_(model)
    assert sum(module.packed.nbytes for _, module in packed_modules(model)) == before
    assert torch.equal(logits(model), expected)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_transformers_own_values(tmp_path):
    """Without qcore, transformers dequantizes the same file to the same values."""
    write(tmp_path / "m.gguf", {"all": "Q4_K", "ffn_down": "Q6_K"})
    own = opened(tmp_path / "m.gguf", None, dtype=torch.float32)
    model = opened(tmp_path / "m.gguf")
    for name, module in packed_modules(model):
        assert np.array_equal(module.weight.dequantize(), own.get_parameter(f"{name}.weight").detach().numpy())
    assert type(own.model.layers[0].mlp.up_proj) is torch.nn.Linear


def test_enable(tmp_path):
    values = write(tmp_path / "m.gguf", {"all": "Q4_0"})
    qt.enable("gguf", config=FLOAT)
    try:
        model = opened(tmp_path / "m.gguf", None)
    finally:
        qt.disable()
    assert len(dict(packed_modules(model))) == 9
    assert kl(expected_logits(values), logits(model)) < 1e-6


def test_bfloat16_hosts(tmp_path):
    write(tmp_path / "m.gguf", {"all": "Q4_0"})
    model = opened(tmp_path / "m.gguf", dtype=torch.bfloat16)
    assert logits(model).dtype == torch.bfloat16


def test_broken_files(tmp_path):
    write(tmp_path / "m.gguf", {"all": "Q4_0"})
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:-64])
    with pytest.raises((qcore.QcoreValueError, ValueError)):
        opened(tmp_path / "m.gguf")
