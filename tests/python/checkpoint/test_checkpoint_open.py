"""formats.open_checkpoint: every kind of checkpoint, read lazily, with what info() says of it."""

import json
import sys

import numpy as np
import pytest
from checkpoint_files import AWQ, GGUF_F16, GGUF_F32, GGUF_Q8_0, GPTQ, gguf, gguf_string, model, packed_folder, sharded
from safetensors.numpy import save_file

import qcore
from qcore.formats import TensorInfo, open_checkpoint


@pytest.mark.parametrize("kind", ["file", "folder", "index", "sharded folder"])
def test_safetensors(tmp_path, kind):
    tensors = model()
    if "file" in kind or kind == "folder":
        save_file(tensors, tmp_path / "model.safetensors")
        path = tmp_path / "model.safetensors" if kind == "file" else tmp_path
    else:
        path = sharded(tmp_path, tensors, 3)
        path = path if kind == "index" else tmp_path
    with open_checkpoint(path) as checkpoint:
        assert set(checkpoint) == set(tensors)
        assert len(checkpoint) == len(tensors)
        assert "ids" in checkpoint and "absent" not in checkpoint
        for name, array in tensors.items():
            read = checkpoint[name]
            assert read.dtype == array.dtype
            assert np.array_equal(read, array)
            assert not read.flags.writeable
        info = checkpoint.info("layers.1.weight")
        assert info == TensorInfo("layers.1.weight", "float16", (9, 70), 16, None, None, 9 * 70 * 2)
        assert not info.quantized
        names = ", ".join(list(checkpoint)[:3])
        for call in (checkpoint.__getitem__, checkpoint.info, checkpoint.entry, checkpoint.tensor):
            with pytest.raises(KeyError) as caught:
                call("absent")
            words = f"has no tensor 'absent', expected one of {len(tensors)}: {names}, ..."
            assert caught.value.args[0].endswith(words), caught.value
        assert checkpoint.get("absent") is None
        kept = checkpoint["ids"]
    assert kept.tolist() == [0, 1, 2, 3]  # still mapped
    assert "closed" in repr(checkpoint)
    with pytest.raises(qcore.QcoreValueError, match="is closed"):
        checkpoint["ids"]


def test_own_layout(tmp_path):
    weight = qcore.quantize(model()["layers.0.weight"], bits=8, block_size=16, scheme="asymmetric")
    qcore.save(tmp_path / "w.safetensors", {"w": weight, "b": np.ones(3)})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint["w"] == weight
    nbytes = 24 * 64 + 2 * 24 * 4 * (2 if weight.scale_dtype == "float16" else 4)
    assert checkpoint.info("w") == TensorInfo("w", "qcore", (24, 64), 8, 16, "asymmetric", nbytes)
    assert checkpoint.info("b").format == "float64"


def test_one_tensor_is_read_at_a_time(tmp_path):
    """Pages of a tensor that is not asked for are not touched: the file may be far larger than memory."""
    import resource

    header = {"huge": {"dtype": "F32", "shape": [1 << 34], "data_offsets": [0, 1 << 36]}}
    header["small"] = {"dtype": "F32", "shape": [2], "data_offsets": [1 << 36, (1 << 36) + 8]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(tmp_path / "sparse.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + (1 << 36) + 8)
        file.seek(-8, 2)
        file.write(np.array([1, 2], "<f4").tobytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint["small"].tolist() == [1, 2]
    assert checkpoint["huge"][12345] == 0
    assert checkpoint.info("huge").nbytes == 1 << 36
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"x": np.zeros(1000, np.float32)}, path)
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(qcore.QcoreValueError, match="shorter since it was opened"):
        checkpoint["x"]


def test_gguf(tmp_path):
    rng = np.random.default_rng(0)
    f32 = rng.standard_normal((3, 5), dtype=np.float32)
    f16 = rng.standard_normal((2, 4, 6)).astype(np.float16)
    scales, codes = np.array([0.5, -1, 2, 0], np.float16), rng.integers(-128, 128, (4, 32), dtype=np.int8)
    metadata = gguf_string("general.name") + (8).to_bytes(4, "little") + gguf_string("small")
    metadata += gguf_string("tokens") + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    metadata += (2).to_bytes(8, "little") + gguf_string("a") + gguf_string("bc")
    metadata += gguf_string("general.alignment") + (4).to_bytes(4, "little") + (64).to_bytes(4, "little")
    tensors = {
        "f32": (GGUF_F32, (3, 5), f32.tobytes()),
        "q8": (GGUF_Q8_0, (2, 64), b"".join(d.tobytes() + q.tobytes() for d, q in zip(scales, codes, strict=True))),
        "f16": (GGUF_F16, (2, 4, 6), f16.tobytes()),
    }
    path = gguf(tmp_path / "m.gguf", tensors, metadata, values=3, alignment=64)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.files == (path,)
    assert list(checkpoint) == ["f32", "q8", "f16"]
    assert np.array_equal(checkpoint["f32"], f32)
    assert np.array_equal(checkpoint["f16"], f16)
    assert np.array_equal(checkpoint["q8"].dequantize(), (scales[:, None] * codes).astype(np.float32).reshape(2, 64))
    assert checkpoint.info("q8") == TensorInfo("q8", "gguf Q8_0", (2, 64), 8, 32, "symmetric", 136, "float")


def test_gguf_types_without_a_codec_say_so(tmp_path):
    path = gguf(tmp_path / "m.gguf", {"x": (15, (1, 256), bytes(292))})
    checkpoint = open_checkpoint(path)
    assert checkpoint.info("x").format == "gguf Q8_K"
    with pytest.raises(qcore.QcoreValueError, match=r"'x' is Q8_K, expected Q4_0"):
        checkpoint["x"]


@pytest.mark.parametrize(
    ("config", "form"),
    [
        (AWQ, "awq gemm"),
        (AWQ | {"version": "GEMM"}, "awq gemm"),
        (GPTQ, "gptq v2"),
        (GPTQ | {"checkpoint_format": "gptq"}, "gptq v1"),
        (GPTQ | {"group_size": -1}, "gptq v2"),
    ],
    ids=["awq", "upper case", "gptq", "gptq v1", "one group"],
)
def test_packed_layers_are_described(tmp_path, config, form):
    g = 64 if config["group_size"] == -1 else 32
    checkpoint = open_checkpoint(packed_folder(tmp_path, config, g=g))
    assert set(checkpoint) == {"layer.weight", "bias"}
    nbytes = 64 * 16 // 2 + (64 // g) * (16 // 2 + 16 * 2) + (64 * 4 if "gptq" in form else 0)
    assert checkpoint.info("layer.weight") == TensorInfo(
        "layer.weight", form, (16, 64), 4, g, "asymmetric", nbytes, "float"
    )
    assert checkpoint["bias"].tolist() == [1] * 16


@pytest.mark.parametrize("config", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_no_field_is_guessed(tmp_path, config):
    for key in config:
        folder = packed_folder(tmp_path / key, {k: v for k, v in config.items() if k != key})
        if key == "checkpoint_format":
            with pytest.warns(UserWarning, match="has no 'checkpoint_format': 'gptq' is assumed, version 1"):
                assert open_checkpoint(folder).info("layer.weight").format == "gptq v1"
            continue
        with pytest.raises(qcore.QcoreValueError, match=rf"has no '{key}'"):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "no config.json"),
        (AWQ | {"bits": 3}, "bits is 3, expected 4"),
        (AWQ | {"bits": True}, "bits is True"),
        (AWQ | {"zero_point": False}, "zero_point is False"),
        (AWQ | {"version": "marlin"}, "version is 'marlin'"),
        (AWQ | {"group_size": 0}, "group_size is 0"),
        (AWQ | {"group_size": "128"}, "group_size is '128'"),
        (AWQ | {"group_size": 48}, "K = 64, expected a multiple"),
        (AWQ | {"group_size": 64}, "qzeros has shape [2, 2], expected [1, 2]"),
        (AWQ | {"quant_method": "other"}, "quant_method is 'other'"),
        (GPTQ | {"desc_act": None}, "desc_act is None"),
        (GPTQ | {"bits": 8}, "K = 32"),
    ],
    ids=str,
)
def test_packed_layers_that_do_not_fit_their_config(tmp_path, config, words):
    if words == "K = 32":
        words = "qzeros has shape"
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(packed_folder(tmp_path, config))
    assert words in str(caught.value)


AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}


@pytest.mark.parametrize(
    ("layout", "same"),
    [
        ("auto_round:auto_awq", AWQ),
        ("auto_round:auto_gptq", GPTQ | {"checkpoint_format": "gptq"}),
        ("auto_round:gptqmodel", GPTQ),
        ("auto_round", GPTQ),
    ],
)
@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
def test_auto_round_is_the_layout_that_it_names(tmp_path, layout, same, method):
    from safetensors.numpy import load_file

    folder = packed_folder(tmp_path / "same", same)
    parts = load_file(folder / "model.safetensors")
    parts["layer.qzeros"] &= 0x77777777  # none of them all ones, which version 1 leaves open
    save_file(parts, folder / "model.safetensors")
    weight = open_checkpoint(folder)["layer.weight"]
    parts.pop("layer.g_idx", None)  # AutoRound has none
    config = AUTO_ROUND | {"packing_format": layout, "quant_method": method}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    save_file(parts, folder / "model.safetensors")
    assert open_checkpoint(folder)["layer.weight"] == weight


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"packing_format": "auto_round:fp8_static"}, "packing_format is 'auto_round:fp8_static', expected"),
        ({"bits": 5}, "bits is 5, expected 2 or 3 or 4 or 8"),
        ({"data_type": "mx_fp"}, "data_type is 'mx_fp', expected 'int'"),
        ({"extra_config": {"a.b": {"bits": 8}}}, "extra_config: a.b: bits is 8, expected that of all layers"),
        ({"extra_config": {"a.b": {"group_size": 64}}}, "extra_config: a.b: group_size is 64, expected"),
        ({"extra_config": [1]}, "extra_config is [1], expected objects by layer"),
    ],
)
def test_auto_round_that_is_refused(tmp_path, change, words):
    config = AUTO_ROUND | {"packing_format": "auto_round:auto_gptq"} | change
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(packed_folder(tmp_path, config))
    assert words in str(caught.value)


def test_folders(tmp_path):
    with pytest.raises(qcore.QcoreValueError, match="has no"):
        open_checkpoint(tmp_path)
    for name in ("a", "b"):
        save_file({"x": np.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(qcore.QcoreValueError, match="has 2 files"):
        open_checkpoint(tmp_path)
    save_file({"y": np.zeros(1)}, tmp_path / "model.safetensors")
    assert list(open_checkpoint(tmp_path)) == ["y"]
    with pytest.raises(FileNotFoundError):
        open_checkpoint(tmp_path / "absent")


def test_bfloat16_needs_ml_dtypes_only_where_an_array_is_asked_for(tmp_path, monkeypatch):
    import ml_dtypes

    values = np.arange(8).reshape(2, 4).astype(ml_dtypes.bfloat16)
    qcore.save(tmp_path / "m.safetensors", {"w": values})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.info("w").format == "bfloat16"
    weight = qcore.quantize(
        checkpoint.entry("w").section.operand("quantize: weight"),
        bits=8,
        block_size=4,
        method="rtn",
        scale_dtype="float32",
    )
    assert weight.dequantize()[1, 3] == 7
    with pytest.raises(qcore.QcoreTypeError, match="ml_dtypes"):
        checkpoint["w"]


@pytest.mark.parametrize("k", [64, 320], ids=["padded", "two words of zeros"])
def test_awq_gemv_layers_are_read(tmp_path, k):
    n, g, groups = 6, 32, k // 32
    words = -(-groups // 32) * 4  # of 8 zero points each, in fours at this group size
    rng = np.random.default_rng(0)
    random = lambda *shape: rng.integers(-(2**31), 2**31, shape, dtype=np.int64).astype(np.int32)  # noqa: E731
    qweight, qzeros = random(n, k // 8), random(n, words)
    scales = rng.uniform(0.01, 0.02, (n, 8 * words)).astype(np.float16)
    parts = {"layer.qweight": qweight, "layer.qzeros": qzeros, "layer.scales": scales}
    save_file(parts, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": AWQ | {"version": "gemv"}}))
    checkpoint = open_checkpoint(tmp_path)
    nbytes = sum(array.nbytes for array in parts.values())
    assert checkpoint.info("layer.weight") == TensorInfo(
        "layer.weight", "awq gemv", (n, k), 4, g, "asymmetric", nbytes, "float"
    )
    u, z = (
        np.stack([each.astype(np.int64) >> 4 * j & 15 for j in range(8)], -1).reshape(n, -1)
        for each in (qweight, qzeros)
    )
    expected = (u - np.repeat(z[:, :groups], g, axis=1)) * np.repeat(scales[:, :groups].astype(np.float32), g, axis=1)
    assert np.array_equal(checkpoint["layer.weight"].dequantize(), expected.astype(np.float32))
    save_file(parts | {"layer.scales": scales[:, :-1].copy()}, tmp_path / "model.safetensors")
    with pytest.raises(
        qcore.QcoreValueError, match=rf"scales has shape \[6, {8 * words - 1}\], expected \[6, {8 * words}\]"
    ):
        open_checkpoint(tmp_path)


def packed_values(qweight, qzeros, order):
    """Return u - z of [K, N / 8] words without qcore: column n is nibble order[n % 8] of word n // 8."""
    nibbles = lambda words: np.stack([words.astype(np.int64) >> 4 * order[n] & 15 for n in range(8)], -1)  # noqa: E731
    u, z = (nibbles(words).reshape(words.shape[0], -1) for words in (qweight, qzeros))
    return u - np.repeat(z, u.shape[0] // z.shape[0], axis=0)


def test_awq_layers_are_read(tmp_path):
    from safetensors.numpy import load_file

    folder = packed_folder(tmp_path, AWQ)
    raw = load_file(folder / "model.safetensors")
    weight = open_checkpoint(folder)["layer.weight"]
    scales = np.repeat(raw["layer.scales"].astype(np.float32), 32, axis=0)
    codes = packed_values(raw["layer.qweight"], raw["layer.qzeros"], [0, 4, 1, 5, 2, 6, 3, 7])
    assert (weight.bits, weight.block_size) == (4, 32)
    assert np.array_equal(weight.dequantize(), (codes * scales).T.astype(np.float32))


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_layers_are_read(tmp_path, act_order):
    from safetensors.numpy import load_file

    folder = packed_folder(tmp_path, GPTQ | {"desc_act": act_order})
    raw = load_file(folder / "model.safetensors")
    if act_order:
        raw["layer.g_idx"] = np.random.default_rng(0).permutation(raw["layer.g_idx"])
        save_file(raw, folder / "model.safetensors")
    weight = open_checkpoint(folder)["layer.weight"]
    groups = raw["layer.g_idx"]
    u = np.stack([raw["layer.qweight"].astype(np.int64) >> 4 * k & 15 for k in range(8)], 1).reshape(64, 16)
    z = np.stack([raw["layer.qzeros"].astype(np.int64) >> 4 * n & 15 for n in range(8)], -1).reshape(2, 16)
    expected = (u - z[groups]) * raw["layer.scales"].astype(np.float32)[groups]
    assert np.array_equal(weight.dequantize(), expected.T.astype(np.float32))
    assert isinstance(weight, qcore.ReorderedTensor) is act_order


@pytest.mark.parametrize("config", [AWQ, GPTQ], ids=["awq", "gptq in another order"])
def test_packed_checkpoints_are_saved_in_our_layout(tmp_path, config):
    from safetensors.numpy import load_file

    folder = packed_folder(tmp_path / "packed", config)
    if config is GPTQ:
        raw = load_file(folder / "model.safetensors")
        raw["layer.g_idx"] = np.random.default_rng(0).permutation(raw["layer.g_idx"])
        save_file(raw, folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        qcore.save(tmp_path / "ours.safetensors", checkpoint)
        weight = checkpoint["layer.weight"]
    loaded = qcore.load(tmp_path / "ours.safetensors")["layer.weight"]
    assert type(loaded) is (qcore.ReorderedTensor if config is GPTQ else qcore.QuantizedTensor)
    assert np.array_equal(loaded.dequantize(), weight.dequantize())
