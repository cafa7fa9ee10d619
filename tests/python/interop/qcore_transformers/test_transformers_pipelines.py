"""Models of sentence-transformers and diffusers: quantized while they are loaded, saved and loaded."""

import os

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")

import qcore.transformers as qt  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402

FLOAT = qt.QcoreConfig(bits=8, compute="float")


def weights_of(model):
    return {name: module.weight for name, module in packed_modules(model)}


@pytest.fixture
def sentence_folder(tmp_path):
    """Write a tiny BERT with a vocabulary, and mean pooling."""
    package = pytest.importorskip("sentence_transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=len(words)))
    model.save_pretrained(tmp_path / "bert")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    word = Transformer(str(tmp_path / "bert"))
    pooling = Pooling(word.get_embedding_dimension(), "mean")
    package.SentenceTransformer(modules=[word, pooling], device="cpu").save(str(tmp_path / "sentence"))
    return tmp_path / "sentence"


def test_sentence_transformers(sentence_folder, tmp_path):
    import sentence_transformers

    text = ["a b c", "d e f g h"]
    options = {"device": "cpu", "local_files_only": True}
    expected = sentence_transformers.SentenceTransformer(str(sentence_folder), **options).encode(text)
    made = sentence_transformers.SentenceTransformer(
        str(sentence_folder), model_kwargs={"quantization_config": FLOAT}, **options
    )
    assert len(weights_of(made)) >= 13
    vectors = made.encode(text)
    assert np.abs(vectors - expected).max() < 0.02 * np.abs(expected).max()
    made.save(str(tmp_path / "saved"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), **options)
    assert np.array_equal(again.encode(text), vectors)
    assert weights_of(again) == weights_of(made)


def test_sentence_transformers_from_the_command_line(sentence_folder, tmp_path):
    import sentence_transformers
    from typer.testing import CliRunner

    from qcore.cli import app

    out = tmp_path / "out"
    arguments = ["quantize", str(sentence_folder), str(out), "--bits", "8"]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    options = {"device": "cpu", "local_files_only": True}
    expected = sentence_transformers.SentenceTransformer(str(sentence_folder), **options).encode(["a b c"])
    made = sentence_transformers.SentenceTransformer(str(out), **options)
    assert len(weights_of(made)) >= 13
    assert np.abs(made.encode(["a b c"]) - expected).max() < 0.05 * np.abs(expected).max()


@pytest.fixture
def image_model(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    ).eval()
    model.save_pretrained(tmp_path / "float")
    return model


def noise_of(model):
    torch.manual_seed(1)
    x, text = torch.randn(1, 4, 16, 16), torch.randn(1, 7, 32)
    with torch.no_grad():
        return model(x, 3, text).sample


def test_diffusers(image_model, tmp_path):
    import qcore.transformers.diffusers

    kind = type(image_model)
    made = kind.from_pretrained(tmp_path / "float", quantization_config=FLOAT)
    found = weights_of(made)
    linear = [name for name, module in image_model.named_modules() if isinstance(module, torch.nn.Linear)]
    assert len(linear) > 20
    assert set(linear) <= set(found)
    expected = noise_of(image_model)
    assert (noise_of(made) - expected).norm() < 0.02 * expected.norm()
    made.save_pretrained(tmp_path / "saved")
    again = kind.from_pretrained(tmp_path / "saved")
    assert weights_of(again) == found
    assert torch.equal(noise_of(again), noise_of(made))
    with open_checkpoint(tmp_path / "saved") as checkpoint:
        assert all(checkpoint[f"{name}.weight"] == weight for name, weight in found.items())
    with pytest.raises(qcore.QcoreValueError, match="safe_serialization is False, expected True"):
        made.save_pretrained(tmp_path / "other", safe_serialization=False)


def test_diffusers_leaves_what_it_is_told_to(image_model, tmp_path):
    import qcore.transformers.diffusers

    config = qt.QcoreConfig(bits=8, modules_to_not_convert=["conv_in", "conv_out", "time_embedding"])
    made = type(image_model).from_pretrained(tmp_path / "float", quantization_config=config)
    found = weights_of(made)
    assert not any(word in name for name in found for word in ("conv_in", "conv_out", "time_embedding"))
    assert type(made.conv_in) is torch.nn.Conv2d
    with pytest.raises(qcore.QcoreValueError, match="'nothing', which matches none of the model's"):
        type(image_model).from_pretrained(
            tmp_path / "float", quantization_config=qt.QcoreConfig(modules_to_not_convert=["nothing"])
        )
