"""GGUF blocks and files, against the package gguf."""

import errno
import os
import struct
import subprocess
import sys

import gguf
import numpy as np
import pytest

import qcore
from qcore import formats
from qcore.formats import gguf_blocks

HALVES = {"Q4_1": 2, "Q5_1": 2, "Q2_K": 2, "Q4_K": 2, "Q5_K": 2, "MXFP4": 0, "NVFP4": 0}
"""How many fp16 numbers a block has, one unless it is listed."""
AT_THE_END = ("Q2_K", "Q3_K", "Q6_K", "TQ2_0")
"""Types whose fp16 numbers come last; those of all others come first."""
BLOCK_SIZES = {"Q2_K": 16, "Q3_K": 16, "Q6_K": 16, "NVFP4": 16, "TQ2_0": 256}
"""Elements per scale, 32 unless it is listed."""
BITS = {"IQ4_NL": 4, "IQ4_XS": 4, "MXFP4": 4, "NVFP4": 4, "TQ2_0": 2}


def raw_of(kind, n=6, k=512, seed=0, spread=0.02):
    """Return random bytes with fp16 numbers of both signs, and without the two bytes that are no numbers of 8 bits."""
    rng = np.random.default_rng(seed)
    block, count = gguf_blocks.TYPES[kind], HALVES.get(kind, 1)
    raw = rng.integers(0, 256, (n, k // block.elements, block.octets)).astype(np.uint8)
    if kind == "MXFP4":
        raw[..., 0] = rng.integers(0, 250, raw.shape[:2])
    elif kind == "NVFP4":
        raw[..., :4] = rng.integers(0, 255, (*raw.shape[:2], 4))
    else:
        halves = (rng.standard_normal((*raw.shape[:2], count)) * spread).astype(np.float16)
        place = slice(-2 * count, None) if kind in AT_THE_END else slice(2 * count)
        raw[..., place] = halves.view(np.uint8)
    return raw.reshape(n, -1)


def dequantized(kind, raw):
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


def wide_raw(kind):
    """Return numbers whose exponents lie so far apart that float32 has no sum of them."""
    raw = raw_of(kind).reshape(6, -1, gguf_blocks.TYPES[kind].octets)
    raw[0, 0, :4] = np.array([3.0e-5, 1000.0], np.float16).view(np.uint8)
    return raw.reshape(6, -1)


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_every_value_is_ggufs_own(kind, seed):
    raw = raw_of(kind, seed=seed)
    weight = gguf_blocks.tensor_of(kind, raw, "test")
    assert (weight.shape, weight.block_size) == ((6, 512), BLOCK_SIZES.get(kind, 32))
    assert weight.bits == BITS.get(kind) or weight.bits == int(kind[1])
    assert np.array_equal(weight.dequantize(), dequantized(kind, raw))


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
def test_a_weight_takes_the_bytes_of_its_file(kind):
    raw = raw_of(kind, n=32, k=1024)
    weight = gguf_blocks.tensor_of(kind, raw, "test")
    assert weight.nbytes == raw.nbytes
    assert (weight.encoding is None) == (kind in ("Q4_0", "Q8_0"))


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
def test_many_blocks_have_ggufs_values(kind):
    """All bytes of every place among them; numbers of 8 bits that are none are refused by name elsewhere."""
    block = gguf_blocks.TYPES[kind]
    raw = raw_of(kind, n=8, k=block.elements * 1024, seed=9, spread=30)
    assert np.array_equal(gguf_blocks.tensor_of(kind, raw, "test").dequantize(), dequantized(kind, raw))


def test_scales_that_are_no_numbers():
    raw = raw_of("MXFP4")
    raw[2, 17] = 255
    with pytest.raises(qcore.QcoreValueError, match=r"t has a scale of 255 \(NaN .*\) in row 2, block 1, expected"):
        gguf_blocks.tensor_of("MXFP4", raw, "t")
    raw = raw_of("NVFP4")
    raw[1, 3] = 127  # zero, as ggml reads it
    assert np.array_equal(gguf_blocks.tensor_of("NVFP4", raw, "t").dequantize(), dequantized("NVFP4", raw))
    raw[3, 2] = 255
    with pytest.raises(qcore.QcoreValueError, match=r"t has the scale 0xff, .* in row 3, block 2, expected"):
        gguf_blocks.tensor_of("NVFP4", raw, "t")


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_exact_where_float32_has_no_such_offset(kind):
    raw = wide_raw(kind)
    weight = gguf_blocks.tensor_of(kind, raw, "test")
    assert (weight.bits, weight.plain().bits) == (4, 8)
    assert np.array_equal(weight.dequantize(), dequantized(kind, raw))
    rounded = gguf_blocks.tensor_of(kind, raw, "test", exact=False)
    assert (rounded.bits, rounded.encoding) == (4, None)
    difference = np.abs(rounded.dequantize() - weight.dequantize())
    assert 0 < difference.max() <= 2.0**-23 * np.abs(weight.offsets()).max()


def test_four_bits_where_that_is_exact():
    assert gguf_blocks.tensor_of("Q4_0", raw_of("Q4_0"), "test").bits == 4
    near = raw_of("Q4_1").reshape(6, -1, 20)
    near[..., :4] = np.array([0.0123, -0.1], np.float16).view(np.uint8)
    assert gguf_blocks.tensor_of("Q4_1", near.reshape(6, -1), "test").bits == 4


def canonical(kind, raw):
    """Return the bytes without what ggml's decoder does not read: the signs of NVFP4's scales, and its 0x7f."""
    if kind != "NVFP4":
        return raw
    blocks = raw.reshape(len(raw), -1, 36).copy()
    blocks[..., :4] = np.where(blocks[..., :4] & 0x7F == 0x7F, 0, blocks[..., :4] & 0x7F)
    return blocks.reshape(raw.shape)


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_bytes_come_back(kind, seed):
    raw = raw_of(kind, seed=seed)
    weight = gguf_blocks.tensor_of(kind, raw, "test")
    assert np.array_equal(gguf_blocks.raw_of(kind, weight, "test"), canonical(kind, raw))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_bytes_of_plain_weights_come_back(kind):
    raw = raw_of(kind)
    if kind == "Q4_1":
        raw = raw.reshape(6, -1, 20)
        raw[..., :4] = np.array([0.5, -3.0], np.float16).view(np.uint8)
        raw = raw.reshape(6, -1)
    weight = gguf_blocks.tensor_of(kind, raw, "test").plain()
    assert np.array_equal(gguf_blocks.raw_of(kind, weight, "test"), raw)


def test_files_keep_every_type(tmp_path):
    raw = {kind: raw_of(kind) for kind in gguf_blocks.TYPES}
    formats.to_gguf(
        tmp_path / "a.gguf", {kind: gguf_blocks.tensor_of(kind, octets, "test") for kind, octets in raw.items()}
    )
    found = gguf.GGUFReader(tmp_path / "a.gguf").tensors
    assert len(found) == len(raw)
    for tensor in found:
        assert tensor.tensor_type.name == tensor.name
        assert np.array_equal(tensor.data, canonical(tensor.name, raw[tensor.name]))


def test_unsigned_codes_go_back_to_q4_1():
    raw = wide_raw("Q4_1")
    assert np.array_equal(gguf_blocks.raw_of("Q4_1", gguf_blocks.tensor_of("Q4_1", raw, "test"), "test"), raw)


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
def test_files_of_the_package_are_read(kind, tmp_path):
    raw = raw_of(kind)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "test")
    writer.add_tensor("other", np.ones((3, 4), np.float32))
    writer.add_tensor("w", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weight = formats.from_gguf(tmp_path / "a.gguf", "w")
    assert np.array_equal(weight.dequantize(), dequantized(kind, raw))
    with pytest.raises(qcore.QcoreValueError, match=r"other has type F32, expected one of Q4_0, Q4_1"):
        formats.from_gguf(tmp_path / "a.gguf", "other")
    with pytest.raises(
        qcore.QcoreValueError, match=r"a.gguf has no tensor 'x', expected one of its 2 tensors: other, w$"
    ):
        formats.from_gguf(tmp_path / "a.gguf", "x")


def native(bits, block_size=64, scale_dtype="float16", **options):
    w = np.random.default_rng(4).standard_normal((16, 128), dtype=np.float32)
    return qcore.quantize(w, bits=bits, block_size=block_size, scale_dtype=scale_dtype, **options)


def test_files_are_written_for_the_package(tmp_path):
    tensors = {"w4": native(4), "w8": native(8, 32), "norm": np.arange(5, dtype=np.float32)}
    path = tmp_path / "a.gguf"
    formats.to_gguf(path, tensors)
    found = {each.name: each for each in gguf.GGUFReader(path).tensors}
    assert {name: each.tensor_type.name for name, each in found.items()} == {"w4": "Q4_0", "w8": "Q8_0", "norm": "F32"}
    for name in ("w4", "w8"):
        got = gguf.quants.dequantize(found[name].data, found[name].tensor_type)
        assert np.array_equal(got, tensors[name].dequantize())
        assert np.array_equal(formats.from_gguf(path, name).dequantize(), tensors[name].dequantize())
    assert np.array_equal(found["norm"].data, tensors["norm"])
    os.chmod(path, 0o600)
    formats.to_gguf(path, {"w": tensors["w4"]}, kind="Q8_0")
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert np.array_equal(formats.from_gguf(path, "w").dequantize(), tensors["w4"].dequantize())
    assert os.listdir(tmp_path) == ["a.gguf"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: native(4, scale_dtype="float32"),
            "w has no exact form: .*weight's scales has .* float16 holds exactly",
        ),
        (lambda: native(4, block_size=48), "block_size is 48, expected a multiple of 32"),
        (lambda: native(8, scheme="asymmetric"), "Q8_0: weight has offsets, expected none: Q8_0 has no place for them"),
        (lambda: np.ones(3), "w has dtype float64, expected a QuantizedTensor, float32 or float16"),
    ],
)
def test_what_cannot_be_written(make, message, tmp_path):
    with pytest.raises(qcore.QcoreError, match=f"^to_gguf: {message}" if message[0] == "w" else message):
        formats.to_gguf(tmp_path / "a.gguf", {"w": make()})
    assert os.listdir(tmp_path) == []


def test_kinds_are_checked(tmp_path):
    with pytest.raises(qcore.QcoreValueError, match="to_gguf: kind is 'Q9', expected one of 'Q4_0'"):
        formats.to_gguf(tmp_path / "a.gguf", {}, kind="Q9")
    with pytest.raises(
        qcore.QcoreValueError, match=r"w: weight has plain codes of 4 bits .*, expected .*uint6.*Q4_K has"
    ):
        formats.to_gguf(tmp_path / "a.gguf", {"w": native(4, 32)}, kind="Q4_K")
    other = gguf_blocks.tensor_of("Q4_K", raw_of("Q4_K"), "test")
    with pytest.raises(qcore.QcoreValueError, match=r"w: weight has the encoding .*, expected .* which Q5_K has"):
        formats.to_gguf(tmp_path / "a.gguf", {"w": other}, kind="Q5_K")
    with pytest.raises(qcore.QcoreValueError, match=r"weight has codes -\d+ to \d+, expected -8 to 7 for Q4_0"):
        formats.to_gguf(tmp_path / "a.gguf", {"w": native(8, 32)}, kind="Q4_0")


def test_places_that_take_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, kind, words in (
        (
            "absent/a.gguf",
            FileNotFoundError,
            f"there is no folder {tmp_path / 'absent'}, expected one: .*absent/a.gguf",
        ),
        (".", IsADirectoryError, "it is a folder, expected the name of a file"),
        ("pipe", OSError, "it is a device, a pipe or a socket, expected the name of a file"),
    ):
        with pytest.raises(kind, match=words):
            formats.to_gguf(tmp_path / name, {"w": native(4)})
    assert os.listdir(tmp_path) == ["pipe"]
    with pytest.raises(qcore.QcoreTypeError, match="to_gguf: path is a NoneType, expected a path"):
        formats.to_gguf(None, {"w": native(4)})


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "link").symlink_to("a.gguf")
    formats.to_gguf(tmp_path / "link", {"w": native(4, 32)})
    assert (tmp_path / "link").is_symlink()
    assert formats.from_gguf(tmp_path / "a.gguf", "w") == native(4, 32)


def test_a_full_disk_names_the_file(tmp_path):
    code = (
        "import resource, sys, numpy\nfrom qcore import formats\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "formats.to_gguf(sys.argv[1], {'x': numpy.zeros(1000, numpy.float32)})"
    )
    path = tmp_path / "a.gguf"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"OSError: [Errno {errno.EFBIG}] File too large: '{path}'"
    assert os.listdir(tmp_path) == []


def test_broken_files(tmp_path):
    path = tmp_path / "a.gguf"
    formats.to_gguf(path, {"w": native(4)})
    whole = path.read_bytes()
    damaged = "is truncated or damaged: its header describes what its {} bytes do not hold, expected a whole file"
    for content, words in (
        (b"", "is no GGUF file: it begins with b'', expected b'GGUF'"),
        (b"no such thing" * 10, "is no GGUF file: it begins with b'no s', expected b'GGUF'"),
        (whole[: len(whole) // 2], damaged),
        (whole[:40], damaged),
        (b"GGUF" + b"\xff" * 64, damaged),
    ):
        path.write_bytes(content)
        with pytest.raises(qcore.QcoreValueError) as caught:
            formats.from_gguf(path, "w")
        assert str(caught.value) == f"from_gguf: {path} {words.format(len(content))}"
    q4_0, unknown = struct.pack("<IQ", 2, 0), struct.pack("<IQ", 99, 0)
    assert whole.count(q4_0) == 1
    path.write_bytes(whole.replace(q4_0, unknown))
    with pytest.raises(qcore.QcoreValueError, match="has a tensor of a type that the package gguf does not know"):
        formats.from_gguf(path, "w")
    with pytest.raises(FileNotFoundError):
        formats.from_gguf(tmp_path / "none.gguf", "w")


def test_bad_raw_bytes():
    raw = raw_of("Q4_0")
    with pytest.raises(qcore.QcoreValueError, match="t has rows of 287 bytes, expected a multiple of 18 for Q4_0"):
        gguf_blocks.tensor_of("Q4_0", raw[:, :-1], "t")
    with pytest.raises(qcore.QcoreTypeError, match="t has dtype int8, expected uint8"):
        gguf_blocks.tensor_of("Q4_0", raw.view(np.int8), "t")
    raw[:, :2] = np.array([np.inf], np.float16).view(np.uint8)
    with pytest.raises(qcore.QcoreValueError, match=r"t has inf at index \[0, 0\], expected finite numbers"):
        gguf_blocks.tensor_of("Q4_0", raw, "t")


@pytest.mark.parametrize("kind", gguf_blocks.TYPES)
@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
def test_linear(kind, compute):
    weight = gguf_blocks.tensor_of(kind, raw_of(kind), "test")
    x = np.random.default_rng(2).standard_normal((3, 512), dtype=np.float32)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    error = np.linalg.norm(qcore.linear(x, weight, compute=compute) - exact) / np.linalg.norm(exact)
    assert error < (2e-2 if compute.startswith("int8") else 1e-4)
