"""qcore.language_model: windows and metrics against NumPy, text token by token, loading and its errors."""

import json
import os

import language_models
import numpy as np
import pytest
import torch

import qcore
import qcore.language_model as lm
from qcore.language_model.evaluation import Window, plan_windows
from qcore.language_model.generation import IncrementalText, TokenClock, run
from qcore.language_model.loading import find_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return language_models.write(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return lm.load_model(folder).model


def noisy(model, amount=0.02):
    """Return a copy of a model with other weights."""
    made = language_models.llama()
    made.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += amount * torch.randn(parameter.shape, generator=generator)
    return made


def log_probabilities(model, tokens, position, context, stride):
    """Compute the next token's in float64 by NumPy, from exactly the tokens that the definition uses.

    A window begins at each multiple of the stride, and a token belongs to the first window that holds it.
    """
    start = 0
    while position >= start + context:
        start += stride
    with torch.no_grad():
        logits = model(torch.tensor([tokens[start:position]])).logits[0, -1].double().numpy()
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


@pytest.mark.parametrize(("length", "context", "stride"), [(30, 8, 4), (30, 8, 7), (30, 8, 1), (5, 8, 4), (24, 8, 4)])
def test_evaluate_is_what_numpy_computes(model, length, context, stride):
    other = noisy(model)
    tokens = np.random.default_rng(0).integers(0, 200, length).tolist()
    found = lm.evaluate(other, tokens, against=model, context=context, stride=stride)
    loss, reference_loss, divergences, same = 0.0, 0.0, [], 0
    for position in range(1, length):
        q, p = (log_probabilities(each, tokens, position, context, stride) for each in (other, model))
        loss -= q[tokens[position]]
        reference_loss -= p[tokens[position]]
        divergences.append(float((np.exp(p) * (p - q)).sum()))
        same += p.argmax() == q.argmax()
    count = length - 1
    assert found.tokens == count
    assert found.negative_log_likelihood == pytest.approx(loss / count, rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(loss / count), rel=1e-5)
    comparison = found.comparison
    assert comparison.perplexity == pytest.approx(np.exp(reference_loss / count), rel=1e-5)
    assert comparison.kl_divergence == pytest.approx(np.mean(divergences), rel=1e-4)
    assert comparison.kl_standard_error == pytest.approx(np.std(divergences, ddof=1) / np.sqrt(count), rel=1e-4)
    assert comparison.kl_99 == pytest.approx(np.quantile(divergences, 0.99, method="inverted_cdf"), rel=1e-4)
    assert comparison.same_first_choice == same / count
    assert comparison.kl_divergence > 1e-3 and 0 < same < count


def test_a_model_has_no_distance_from_itself(model):
    found = lm.evaluate(model, list(range(40)), against=model)
    assert found.comparison.kl_divergence == 0 and found.comparison.same_first_choice == 1
    assert found.comparison.perplexity == found.perplexity


def test_several_texts_are_evaluated_apart(model):
    texts = [[5, 6, 7, 8, 9], torch.tensor([9, 8, 7]), np.array([1, 2, 3, 4])]
    together = lm.evaluate(model, texts)
    apart = [lm.evaluate(model, text) for text in texts]
    assert together.tokens == 4 + 2 + 3 and together.windows == 3
    total = sum(each.negative_log_likelihood * each.tokens for each in apart)
    assert together.negative_log_likelihood == pytest.approx(total / 9, rel=1e-9)


def test_evaluate_reports_its_progress_and_keeps_the_mode(model):
    steps = []
    model.train()
    try:
        lm.evaluate(model, list(range(30)), context=8, stride=4, progress=steps.append)
        assert model.training
    finally:
        model.eval()
    assert steps == [7, 4, 4, 4, 4, 4, 2]


def test_each_token_but_the_first_is_predicted_once():
    assert plan_windows(10, 4, 2) == [Window(0, 4, 1), Window(2, 6, 4), Window(4, 8, 6), Window(6, 10, 8)]
    for length, context in ((2, 2), (17, 5), (100, 16), (16, 16), (15, 16)):
        for stride in range(1, context):
            predicted = [i for each in plan_windows(length, context, stride) for i in range(each.first, each.end)]
            assert predicted == list(range(1, length))
            assert all(each.start < each.first for each in plan_windows(length, context, stride))


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        ([1], {}, "a text has 1 tokens, expected 2 or more"),
        ([], {}, "a text has 0 tokens"),
        ([[1, 2], []], {}, "a text has 0 tokens"),
        ([1, 2, 3], {"context": 1}, "context is 1, expected 2 or more"),
        ([1, 2, 3], {"context": 65}, "context is 65, expected 64 or less"),
        ([1, 2, 3], {"context": 8, "stride": 8}, "stride is 8, expected 1 to context - 1 = 7"),
        ([1, 2, 3], {"context": 8, "stride": 0}, "stride is 0"),
        ([1, 99999], {}, "tokens has a 99999, expected 0 to"),
        ([1, -1], {}, "tokens has a -1, expected 0 to"),
    ],
)
def test_evaluate_refuses_values(model, tokens, options, words):
    with pytest.raises(qcore.QcoreValueError, match=words):
        lm.evaluate(model, tokens, **options)


@pytest.mark.parametrize("tokens", [[1.5, 2.5], "text", torch.zeros(2, 2, dtype=torch.int64), [["a", "b"]]])
def test_evaluate_refuses_types(model, tokens):
    with pytest.raises(qcore.QcoreTypeError, match="evaluate: tokens"):
        lm.evaluate(model, tokens)


def test_models_of_other_vocabularies_are_refused(model):
    other = language_models.llama()
    other.resize_token_embeddings(40)
    with pytest.raises(qcore.QcoreValueError, match="against has a vocabulary of 40"):
        lm.evaluate(model, [1, 2, 3], against=other)


def test_logits_that_are_not_finite_are_an_error(model):
    other = noisy(model)
    other.model.norm.weight.data[0] = torch.nan
    with pytest.raises(qcore.QcoreValueError, match="model gives logits that are not finite"):
        lm.evaluate(other, [1, 2, 3])


def test_greedy_text_is_that_of_transformers(folder, model):
    tokenizer = lm.load_tokenizer(folder)
    pieces = []
    found = lm.generate(model, tokenizer, "the cat", max_new_tokens=20, show=pieces.append)
    ids = tokenizer("the cat", return_tensors="pt").input_ids
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, max_new_tokens=20, **options)[0, ids.shape[1] :].tolist()
    assert found.tokens == expected
    assert found.text == "".join(pieces) == tokenizer.decode(expected, skip_special_tokens=True)
    assert found.prompt_tokens == ids.shape[1]
    assert found.end == ("end" if expected[-1] == 1 else "limit")
    assert found.prefill_seconds > 0 and found.prefill_rate > 0
    assert found.decode_rate == pytest.approx((len(expected) - 1) / found.decode_seconds)


def test_sampling_depends_on_the_seed_and_on_nothing_else(folder, model):
    tokenizer = lm.load_tokenizer(folder)
    state = torch.random.get_rng_state()
    texts = [
        lm.generate(model, tokenizer, "a dog", max_new_tokens=24, temperature=2.0, seed=seed).tokens
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_text_ends_at_the_last_position(folder, model):
    tokenizer = lm.load_tokenizer(folder)
    model.generation_config.eos_token_id, kept = None, model.generation_config.eos_token_id
    try:
        found = lm.generate(model, tokenizer, "the cat", max_new_tokens=1000)
    finally:
        model.generation_config.eos_token_id = kept
    assert found.prompt_tokens + len(found.tokens) == language_models.POSITIONS and found.end == "limit"


def test_an_interrupt_ends_the_text_and_keeps_it(folder, model):
    def stop(piece):
        raise KeyboardInterrupt

    found = lm.generate(model, lm.load_tokenizer(folder), "the cat", max_new_tokens=20, show=stop)
    assert found.end == "interrupted" and len(found.tokens) >= 1 and found.text


def test_pieces_of_text_are_the_whole_text():
    tokenizer = language_models.tokenizer()
    text = "the cat sat 漢字 😀 ünter.\n\n a  dog"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    for split in range(1, len(ids)):
        decoder = IncrementalText(tokenizer, ids[:split])
        pieces = [decoder.add(token) for token in ids[split:]] + [decoder.rest()]
        assert "\ufffd" not in "".join(pieces[:-1]) or "\ufffd" in tokenizer.decode(ids[:split])
        if "\ufffd" not in tokenizer.decode(ids[:split]):
            assert tokenizer.decode(ids[:split]) + "".join(pieces) == text


def test_an_unfinished_character_is_shown_at_the_end():
    tokenizer = language_models.tokenizer()
    ids = tokenizer("a 😀", add_special_tokens=False).input_ids
    decoder = IncrementalText(tokenizer, ids[:1])
    assert [decoder.add(token) for token in ids[1:-1]][-1] == ""
    assert "\ufffd" in decoder.rest()


def test_the_clock_takes_new_tokens_only(model):
    clock = TokenClock()
    run(model, [3, 4, 5], clock, 6, min_new_tokens=6, do_sample=False)
    assert len(clock.tokens) == len(clock.times) == 6 and clock.times == sorted(clock.times)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("", {}, "prompt is empty"),
        (" \n", {}, "prompt is empty"),
        ("cat " * 80, {}, "expected fewer than 64, the model's positions"),
        ("cat", {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ("cat", {"temperature": -1}, "temperature is -1"),
        ("cat", {"temperature": float("nan")}, "temperature is nan"),
        ("cat", {"chat": True}, "no chat template"),
    ],
)
def test_generate_refuses_values(folder, model, prompt, options, words):
    with pytest.raises(qcore.QcoreValueError, match=words):
        lm.generate(model, lm.load_tokenizer(folder), prompt, **options)


def test_generate_refuses_what_is_no_text(folder, model):
    with pytest.raises(qcore.QcoreTypeError, match="prompt is 3"):
        lm.generate(model, lm.load_tokenizer(folder), 3)


def test_a_chat_prompt_goes_through_the_template(folder, model):
    tokenizer = lm.load_tokenizer(folder)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}.{% endfor %} dog:"
    found = lm.generate(model, tokenizer, "the cat", max_new_tokens=3, chat=True)
    plain = tokenizer("user: the cat. dog:", add_special_tokens=False, return_tensors="pt").input_ids
    assert found.prompt_tokens == plain.shape[1]
    expected = model.generate(plain, attention_mask=torch.ones_like(plain), max_new_tokens=3, pad_token_id=0)
    assert found.tokens == expected[0, plain.shape[1] :].tolist()


def test_bits_quantize_while_loading(folder, model):
    found = lm.load_model(folder, bits=8, compute="float")
    assert found.source.method == "float" and found.bits == 8 and found.seconds > 0
    assert any(type(module).__module__.startswith("qcore.torch") for module in found.model.modules())
    distance = lm.evaluate(found.model, list(range(60)), against=model).comparison
    assert 0 < distance.kl_divergence < 0.05
    assert lm.load_model(folder).bits is None


def test_a_fused_model_writes_the_same_text(folder):
    tokenizer = lm.load_tokenizer(folder)
    fused, plain = (lm.load_model(folder, bits=8, fuse=fuse) for fuse in (True, False))
    assert (fused.unfused, plain.unfused) == ("", "not asked for")
    texts = [lm.generate(each.model, tokenizer, "the cat", max_new_tokens=16) for each in (fused, plain)]
    assert texts[0].tokens == texts[1].tokens
    assert lm.load_model(folder, fuse=True).unfused == "its weights are not quantized"


def test_a_gguf_file_is_found(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    for path in (file, tmp_path):
        assert find_source(path) == lm.Source(tmp_path, "model.gguf", "gguf")


def test_a_saved_quantized_model_is_recognized(folder, tmp_path):
    made = lm.load_model(folder, bits=4)
    made.model.save_pretrained(tmp_path / "saved")
    again = lm.load_model(tmp_path / "saved")
    assert again.source.method == "qcore" and again.bits is None
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(again.model(ids).logits, made.model(ids).logits)
    with pytest.raises(qcore.QcoreValueError, match=r"bits is 4, but .*saved is quantized already \(qcore\)"):
        lm.load_model(tmp_path / "saved", bits=4)


@pytest.mark.parametrize(
    "option", [{"bits": 5}, {"dtype": "float8"}, {"bits": 4, "compute": "int3"}, {"compute": "int8"}]
)
def test_load_refuses_options(folder, option):
    with pytest.raises(qcore.QcoreValueError, match=list(option)[-1]):
        lm.load_model(folder, **option)


def test_what_is_no_model_is_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError):
        lm.load_model(tmp_path / "absent")
    with pytest.raises(qcore.QcoreValueError, match=r"has no config.json and 0 .gguf files"):
        lm.load_model(tmp_path)
    file = tmp_path / "model.bin"
    file.write_bytes(b"")
    with pytest.raises(qcore.QcoreValueError, match="is a file, expected a folder"):
        lm.load_model(file)
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    with pytest.raises(qcore.QcoreValueError, match=r"2 .gguf files"):
        lm.load_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(qcore.QcoreValueError, match="no JSON object"):
        lm.load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(qcore.QcoreError, match="transformers can't load it"):
        lm.load_model(tmp_path)


def test_a_model_that_lacks_weights_is_refused(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(qcore.QcoreError, match=r"no weights for 1 tensors of the model, such as model.layers.1.mlp.up"):
        lm.load_model(tmp_path)
    with pytest.raises(qcore.QcoreError, match="no tokenizer that transformers can load"):
        lm.load_tokenizer(tmp_path)


def test_a_missing_package_is_named(folder, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else real(name))
    with pytest.raises(qcore.QcoreError, match=r"transformers is not installed.*'libqcore\[transformers\]'"):
        lm.load_model(folder)


def test_memory_is_measured():
    from qcore.language_model.memory import measure_memory

    before = measure_memory()
    held = np.ones(40_000_000, np.uint8)
    after = measure_memory()
    assert after.resident - before.resident > 30_000_000 and after.peak >= after.resident
    del held
    assert measure_memory().peak - before.resident > 30_000_000


def test_the_environment_is_left_alone(folder):
    before = dict(os.environ)
    lm.load_tokenizer(folder)
    assert dict(os.environ) == before
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
