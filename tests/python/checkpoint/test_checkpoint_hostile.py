"""Files that lie: an error that names the file, no crash, no memory that the file didn't pay for."""

import json
import struct
import tracemalloc

import encoded_weights
import numpy as np
import pytest
from checkpoint_files import AWQ, GGUF_F32, GGUF_Q8_0, gguf, gguf_string, packed_folder, raw_safetensors, sharded
from hypothesis import given, settings
from hypothesis import strategies as st

import qcore
from qcore.formats import open_checkpoint

MOST_BYTES = 4_000_000
"""Memory that opening a small file may allocate, whatever the file says."""


def opens_or_refuses(path):
    """Open and read everything; True if that went well. Only qcore's errors are allowed, and little memory."""
    tracemalloc.start()
    try:
        with open_checkpoint(path) as checkpoint:
            for name in checkpoint:
                checkpoint.info(name)
                checkpoint[name]
        return True
    except qcore.QcoreError as error:
        assert str(error)
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES


def entry(begin=0, end=16, dtype="F32", shape=(4,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": entry()}, None),
        ({"a": entry(0, 32, shape=[8])}, "truncated"),
        ({"a": entry(0, 8, shape=[2])}, "another's data"),
        ({"a": entry(0, 8, shape=[2]), "b": entry(4, 16, shape=[3])}, "'b' overlaps 'a'"),
        ({"a": entry(), "b": entry()}, "overlaps"),
        ({"a": entry(0, 4, shape=[1]), "b": entry(8, 16, shape=[2])}, "'b' leaves a hole behind 'a'"),
        ({"a": entry(4, 16, shape=[3])}, "leaves a hole behind the header"),
        ({"a": entry(16, 0)}, "expected 16 bytes"),
        ({"a": entry(0, 2**62)}, "expected 16 bytes"),
        ({"a": entry(0, 2**61, shape=[2**59])}, "truncated"),
        ({"a": entry(0, 2**62, shape=[2**60])}, "less than 2^63"),
        ({"a": entry(0, 0, shape=[0, 2**62])}, "less than 2^63"),
        ({"a": entry(2**62, 2**62 + 16)}, "hole"),
        ({"a": entry(0, 16, shape=[2**32, 2**32, 2**32])}, "less than 2^63"),
        ({"a": entry(0, 16, shape=[1] * 33)}, "at most 32 sizes"),
        ({"a": entry(0, 16, shape=[-4])}, "shape [-4]"),
        ({"a": entry(0, 16, shape=[4.0])}, "shape [4.0]"),
        ({"a": entry(0, 16, shape=[True, 4])}, "shape [True, 4]"),
        ({"a": entry(-16, 0)}, "data_offsets"),
        ({"a": entry(dtype="F128")}, "dtype 'F128'"),
        ({"a": entry(dtype=["F32"])}, "dtype ['F32']"),
        ({"a": entry(dtype="F64")}, "expected 32 bytes"),
        ({"a": {"dtype": "F32"}}, "'a' is described by"),
        ({"a": [1]}, "'a' is described by"),
        ({"__metadata__": {"n": 1}, "a": entry()}, "__metadata__"),
        ([1, 2], "a JSON list"),
        (b'{"a": 1, "a": 2}', "'a' comes twice"),
        (b"{" * 100_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"", "not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_headers(tmp_path, header, words):
    path = raw_safetensors(tmp_path / "m.safetensors", header, bytes(16))
    if words is None:
        assert opens_or_refuses(path)
        return
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not opens_or_refuses(path)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 50])
def test_truncated(tmp_path, length):
    path = raw_safetensors(tmp_path / "m.safetensors", {"a": entry()}, bytes(16))
    path.write_bytes(path.read_bytes()[:length])
    assert not opens_or_refuses(path)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**8 + 1, 17])
def test_header_lengths(tmp_path, length):
    path = raw_safetensors(tmp_path / "m.safetensors", b"{}", bytes(8), length)
    assert not opens_or_refuses(path)


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        ("../model-1.safetensors", "own folder"),
        ("/etc/passwd", "own folder"),
        ("a/model-1.safetensors", "own folder"),
        ("a\\model-1.safetensors", "own folder"),
        ("..", "own folder"),
        ("", "own folder"),
        ("a\0.safetensors", "own folder"),
        (3, "own folder"),
        (["model-1.safetensors"], "own folder"),
        (None, "own folder"),
        ("model.safetensors.index.json", "expected a .safetensors file"),
        ("absent.safetensors", "no such file"),
        ("model-2.safetensors", "which has no such tensor"),
        ("loop.safetensors", "no such file"),
    ],
    ids=repr,
)
def test_indexes(tmp_path, shard, words):
    index = sharded(tmp_path, {"a": np.ones(3), "b": np.zeros(2)})
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    content = json.loads(index.read_text())
    content["weight_map"]["a"] = shard
    index.write_text(json.dumps(content))
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(tmp_path)
    assert words in str(caught.value)
    assert str(index) in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{", ""])
def test_indexes_of_another_form(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert not opens_or_refuses(tmp_path)


def own_file(tmp_path, change, weight=None):
    """Write a file in qcore's layout whose description of "w" is changed."""
    path = tmp_path / "w.safetensors"
    qcore.save(path, {"w": weight or qcore.quantize(np.eye(6, 10, dtype=np.float32), bits=4, block_size=4)})
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    weights = json.loads(header["__metadata__"]["weights"])
    change(weights, header["__metadata__"])
    header["__metadata__"].setdefault("weights", json.dumps(weights))
    if "weights" in header["__metadata__"] and header["__metadata__"]["weights"] != "":
        header["__metadata__"]["weights"] = json.dumps(weights)
    return raw_safetensors(path, header, content[8 + length :])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("bits", 5, "bits 5"),
        ("bits", "4", "bits '4'"),
        ("bits", 8, "w.codes is U8 [6, 5], expected I8 [6, 10]"),
        ("block_size", 0, "block_size 0"),
        ("block_size", 2**70, "block_size"),
        ("block_size", 5, "w.scales"),
        ("scheme", "asymmetric", "no tensor w.offsets"),
        ("scheme", None, "scheme None"),
        ("shape", [6, 12], "w.codes"),
        ("shape", [6], "shape [6]"),
        ("shape", [2**40, 2**10], "w.codes"),
        ("shape", [0, 2**62], "less than 2^63"),
        ("shape", "6x10", "shape '6x10'"),
        ("reordered", 1, "reordered 1"),
        ("reordered", True, "no tensor w.order"),
    ],
    ids=str,
)
def test_own_layout_with_another_description(tmp_path, key, value, words):
    path = own_file(tmp_path, lambda weights, _: weights["w"].update({key: value}))
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(path)
    assert words in str(caught.value)
    assert "'w'" in str(caught.value) or "w.codes" in str(caught.value) or "w.scales" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoding": None}, "got NoneType, expected bits"),
        ({"encoding": {"bits": 4}}, "bits 3, expected those of its encoding, 4"),
        ({"bits": 7, "encoding": {"bits": 7}}, "encoding has bits 7, expected 2, 3, 4, 5, 6 or 8"),
        ({"encoding": {"bits": 3, "scales": "uint6", "offsets": "float16"}}, "super_block 0, expected 1 or more"),
        ({"encoding": {"bits": 3, "scales": "uint6", "super_block": 2**70}}, "super_block"),
        ({"encoding": {"bits": 3}}, "scheme 'asymmetric' and the encoding {'bits': 3}, expected those of one weight"),
        ({"encoding": {"bits": 3, "offsets": "float16"}}, "w.scales is BF16 [9, 5], expected F16 [9, 5]"),
        ({"encoding": {"bits": 3, "scales": "bfloat16", "offsets": "uint4", "super_block": 2}}, "w.offsets"),
        ({"shape": [9, 20, 1, 1]}, "expected [N, K] of an encoded weight"),
        ({"shape": [9, 30]}, "w.codes is U8 [9, 8], expected U8 [9, 12]"),
    ],
    ids=str,
)
def test_own_layout_with_another_encoding(tmp_path, change, words):
    weight = encoded_weights.make(encoded_weights.ENCODINGS["bfloat16"], 9, 20, 4).weight
    path = own_file(tmp_path, lambda weights, _: weights["w"].update(change), weight)
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(path)
    assert words in str(caught.value)


def test_own_layout_of_another_version_or_without_a_part(tmp_path):
    with pytest.raises(qcore.QcoreValueError, match=r"format 'qcore.weights.2'"):
        open_checkpoint(own_file(tmp_path, lambda _, metadata: metadata.update(format="qcore.weights.2")))
    with pytest.raises(qcore.QcoreValueError, match="lacks bits"):
        open_checkpoint(own_file(tmp_path, lambda weights, _: weights["w"].pop("bits")))
    with pytest.raises(qcore.QcoreValueError, match="lacks everything"):
        open_checkpoint(own_file(tmp_path, lambda weights, _: weights.update(w=3)))
    with pytest.raises(qcore.QcoreValueError, match=r"no tensor v\.codes"):
        open_checkpoint(own_file(tmp_path, lambda weights, _: weights.update(v=weights["w"])))


def test_scales_that_are_not_finite_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    qcore.save(path, {"w": qcore.quantize(np.eye(4, 8, dtype=np.float32), bits=8, block_size=8)})
    section = open_checkpoint(path).entry("w").sections["scales"]
    content = bytearray(path.read_bytes())
    content[section.offset : section.offset + section.nbytes] = b"\xff" * section.nbytes
    path.write_bytes(content)
    with pytest.raises(qcore.QcoreValueError, match=r"tensor 'w': from_parts: scales"):
        open_checkpoint(path)["w"]


def test_a_packed_layer_that_is_incomplete(tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = packed_folder(tmp_path, AWQ)
    whole = load_file(folder / "model.safetensors")
    for part in ("qzeros", "scales"):
        save_file({n: a for n, a in whole.items() if n != f"layer.{part}"}, folder / "model.safetensors")
        with pytest.raises(qcore.QcoreValueError, match=rf"no tensor layer\.{part}"):
            open_checkpoint(folder)
    save_file(whole | {"layer.scales": whole["layer.scales"].astype(np.float32)}, folder / "model.safetensors")
    with pytest.raises(qcore.QcoreValueError, match="scales is F32"):
        open_checkpoint(folder)


FLOATS = np.arange(12, dtype="<f4").tobytes()


def test_gguf_types_of_a_later_ggml_are_listed(tmp_path):
    path = gguf(tmp_path / "m.gguf", {"a": (99, (3, 4), FLOATS), "b": (GGUF_F32, (3, 4), FLOATS)})
    checkpoint = open_checkpoint(path)
    assert [checkpoint.info(name).format for name in checkpoint] == ["gguf type 99", "float32"]
    assert np.array_equal(checkpoint["b"].reshape(-1), np.arange(12))
    with pytest.raises(
        qcore.QcoreValueError, match=r"m\.gguf: tensor 'a' is type 99, expected Q4_0, .* or a plain type"
    ):
        checkpoint["a"]


@pytest.mark.parametrize(
    ("tensors", "options", "words"),
    [
        ({"a": (GGUF_F32, (3, 4), FLOATS[:-4])}, {}, "truncated"),
        ({"a": (GGUF_F32, (2**40, 2**10), FLOATS)}, {}, "truncated"),
        ({"a": (GGUF_F32, (0, 2**62), FLOATS)}, {}, "less than 2^63"),
        ({"a": (GGUF_F32, (1,) * 5, FLOATS)}, {}, "5 axes"),
        ({"a": (GGUF_Q8_0, (3, 33), FLOATS)}, {}, "multiple of 32"),
        ({"a": (GGUF_Q8_0, (), FLOATS)}, {}, "multiple of 32"),
        ({}, {"version": 1}, "version 1"),
        ({}, {"version": 3 << 24}, "version 50331648"),
        ({}, {"values": 2**60}, "ends within"),
        ({}, {"metadata": gguf_string("k") + struct.pack("<I", 13), "values": 1}, "type 13"),
        ({}, {"metadata": struct.pack("<Q", 2**63), "values": 1}, "ends within"),
        ({}, {"metadata": gguf_string("k") + struct.pack("<IIQ", 9, 8, 2**61), "values": 1}, "ends within"),
        ({}, {"metadata": gguf_string("k") + struct.pack("<IIQ", 9, 4, 2**62), "values": 1}, "ends within"),
        ({}, {"metadata": gguf_string("k") + struct.pack("<IIQ", 9, 9, 1), "values": 1}, "array of type 9"),
        ({}, {"metadata": gguf_string("general.alignment") + struct.pack("<II", 4, 0), "values": 1}, "alignment is 0"),
        ({}, {"metadata": struct.pack("<Q", 2) + b"\xff\xff" + struct.pack("<II", 4, 0), "values": 1}, "UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gguf(tmp_path, tensors, options, words):
    path = gguf(tmp_path / "m.gguf", tensors, **options)
    with pytest.raises(qcore.QcoreValueError) as caught:
        open_checkpoint(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert not opens_or_refuses(path)


def test_gguf_tensors_that_overlap_or_come_twice(tmp_path):
    path = gguf(tmp_path / "m.gguf", {"a": (GGUF_F32, (3, 4), FLOATS), "b": (GGUF_F32, (3, 4), FLOATS)})
    content = path.read_bytes()
    assert opens_or_refuses(path)
    at = content.index(gguf_string("b"))
    offset = at + 9 + 4 + 16 + 4
    path.write_bytes(content[:offset] + struct.pack("<Q", 32) + content[offset + 8 :])
    with pytest.raises(qcore.QcoreValueError, match="'b' overlaps 'a'"):
        open_checkpoint(path)
    path.write_bytes(content.replace(gguf_string("b"), gguf_string("a")))
    with pytest.raises(qcore.QcoreValueError, match="'a' comes twice"):
        open_checkpoint(path)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Return a valid file of each kind, as (name, bytes), and what stands beside it."""
    folder = tmp_path_factory.mktemp("seeds")
    qcore.save(folder / "own.safetensors", {"w": qcore.quantize(np.eye(6, 10, dtype=np.float32)), "b": np.ones(3)})
    encoded = encoded_weights.make(encoded_weights.ENCODINGS["Q3_K"], 6, 40, 8).weight
    qcore.save(folder / "encoded.safetensors", {"w": encoded})
    tensors = {"a": (GGUF_F32, (3, 4), FLOATS), "b": (1, (2, 2), bytes(8))}
    metadata = gguf_string("k") + struct.pack("<I", 8) + gguf_string("v")
    gguf(folder / "m.gguf", tensors, metadata, values=1)
    index = sharded(folder / "shards", {"a": np.ones(3), "b": np.zeros(2)})
    return folder, [folder / "own.safetensors", folder / "m.gguf", index, folder / "encoded.safetensors"]


edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "word"]),
        st.floats(0, 1),
        st.one_of(st.integers(0, 255), st.sampled_from([2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])),
    ),
    min_size=1,
    max_size=4,
)


def edited(content, changes):
    content = bytearray(content)
    for kind, place, value in changes:
        at = int(place * min(len(content), 600))  # headers are where it matters
        if kind == "flip" and at < len(content):
            content[at] ^= value & 255 or 1
        elif kind == "cut":
            del content[at : at + 1 + value % 16]
        elif kind == "insert":
            content[at:at] = bytes([value & 255])
        elif kind == "word":
            content[at : at + 8] = struct.pack("<Q", value)
    return bytes(content)


@pytest.mark.parametrize("number", [0, 1, 2, 3], ids=["own", "gguf", "index", "encoded"])
@settings(max_examples=300)
@given(changes=edits)
def test_edited_files(seeds, number, changes):
    _, files = seeds
    content = files[number].read_bytes()
    path = files[number].with_name(f"edited-{files[number].name}")
    path.write_bytes(edited(content, changes))
    opens_or_refuses(path)


@settings(max_examples=200)
@given(content=st.binary(max_size=200), magic=st.sampled_from([b"", b"GGUF\x03\0\0\0", b"\x10\0\0\0\0\0\0\0{"]))
def test_any_bytes(tmp_path_factory, content, magic):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(magic + content)
    opens_or_refuses(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
headers = st.dictionaries(
    st.text(max_size=6),
    st.fixed_dictionaries(
        {"dtype": st.sampled_from(["F32", "I8", 3]), "shape": json_values, "data_offsets": json_values}
    )
    | json_values,
    max_size=4,
)


@given(header=headers)
def test_any_json(tmp_path_factory, header):
    path = raw_safetensors(tmp_path_factory.getbasetemp() / "json.safetensors", header, bytes(16))
    opens_or_refuses(path)


@given(
    quantization=st.dictionaries(st.sampled_from(["group_size", "bits", "mode", "fc"]), json_values, max_size=4)
    | json_values
)
def test_any_quantization_of_mlx(tmp_path_factory, quantization):
    folder = tmp_path_factory.getbasetemp() / "mlx"
    folder.mkdir(exist_ok=True)
    header = {"fc.weight": entry(0, 16, "U32", (1, 4)), "fc.scales": entry(16, 20, shape=(1, 1))}
    header["fc.biases"] = entry(20, 24, shape=(1, 1))
    raw_safetensors(folder / "model.safetensors", header, bytes(24))
    (folder / "config.json").write_text(json.dumps({"quantization": quantization}))
    opens_or_refuses(folder)
