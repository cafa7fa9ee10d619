"""qcore.save and qcore.load: nothing is lost, and a file is whole or absent."""

import errno
import json
import os
import subprocess
import sys

import encoded_weights
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

import qcore
from qcore import _files
from qcore.formats.checkpoint.layout import unpack_nibbles


def same(a, b):
    """Check that arrays are equal bit for bit."""
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()
        return
    assert a == b
    assert (a.shape, a.bits, a.block_size, a.scheme, a.scale_dtype) == (
        b.shape,
        b.bits,
        b.block_size,
        b.scheme,
        b.scale_dtype,
    )
    for part in ("codes", "scales", "offsets"):
        assert getattr(a, part)().tobytes() == getattr(b, part)().tobytes()


shapes = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(1, 40)),
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)),
)


@given(
    shape=shapes,
    bits=st.sampled_from([4, 8]),
    block_size=st.integers(1, 48),
    scheme=st.sampled_from(["symmetric", "asymmetric"]),
    scale_dtype=st.sampled_from(["float32", "float16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_weights_come_back_bit_for_bit(tmp_path_factory, shape, bits, block_size, scheme, scale_dtype, seed):
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    weight = qcore.quantize(values, bits=bits, block_size=block_size, scheme=scheme, scale_dtype=scale_dtype)
    path = tmp_path_factory.mktemp("saved") / "w.safetensors"
    qcore.save(path, {"w": weight})
    same(qcore.load(path)["w"], weight)


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 40),
    bits=st.sampled_from([4, 8]),
    scheme=st.sampled_from(["symmetric", "asymmetric"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_reordered_weights_come_back_bit_for_bit(tmp_path_factory, rows, columns, bits, scheme, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns), dtype=np.float32)
    inner = qcore.quantize(values, bits=bits, block_size=16, scheme=scheme)
    weight = qcore.ReorderedTensor(inner, rng.permutation(columns))
    path = tmp_path_factory.mktemp("saved") / "w.safetensors"
    qcore.save(path, {"w": weight})
    loaded = qcore.load(path)["w"]
    assert isinstance(loaded, qcore.ReorderedTensor)
    assert np.array_equal(loaded.order, weight.order)
    same(loaded.weight, inner)


@pytest.mark.parametrize("name", encoded_weights.ENCODINGS)
@pytest.mark.parametrize("shape", [(37, 300, 20), (1, 1, 1), (0, 64, 32), (5, 0, 32)], ids=str)
def test_encoded_weights_keep_their_encoding(tmp_path, name, shape):
    weight = encoded_weights.make(encoded_weights.ENCODINGS[name], *shape).weight
    order = np.random.default_rng(0).permutation(shape[1])
    qcore.save(tmp_path / "w.safetensors", {"w": weight, "r": qcore.ReorderedTensor(weight, order)})
    loaded = qcore.load(tmp_path / "w.safetensors")
    assert loaded["w"] == weight and loaded["w"].encoding == weight.encoding
    assert loaded["r"].weight == weight and np.array_equal(loaded["r"].order, order)
    with safe_open(tmp_path / "w.safetensors", "numpy") as file:
        assert file.get_slice("w.codes").get_shape() == [shape[0], -(-shape[1] * weight.bits // 8)]


@pytest.mark.parametrize("columns", [1, 2, 7, 8])
def test_nibbles(columns):
    codes = np.random.default_rng(0).integers(-8, 8, (3, columns)).astype(np.int8)
    weight = qcore.QuantizedTensor.from_parts(codes, np.ones((3, 1), np.float32), bits=4, block_size=8)
    assert np.array_equal(unpack_nibbles(weight.nibbles(), columns), codes)


DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]


def test_arrays_pass_through(tmp_path):
    import ml_dtypes

    rng = np.random.default_rng(0)
    arrays = {name: (rng.standard_normal((3, 5)) * 10).astype(name) for name in [*DTYPES[:7], "bool"]}
    arrays |= {name: rng.integers(0, 100, (2, 2)).astype(name) for name in DTYPES[7:]}
    arrays |= {name: np.arange(6).astype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn")}
    arrays |= {"scalar": np.array(2.5), "empty": np.empty((0, 4), np.float32), "strided": np.arange(12).reshape(3, 4).T}
    path = tmp_path / "arrays.safetensors"
    qcore.save(path, arrays | {"swapped": np.arange(3, dtype=">i4")})
    loaded = qcore.load(path)
    assert loaded.pop("swapped").tolist() == [0, 1, 2]
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        same(loaded[name], np.ascontiguousarray(array).reshape(array.shape))
        assert loaded[name].flags.writeable


def test_the_file_is_plain_safetensors_that_describes_itself(tmp_path):
    weight = qcore.quantize(
        np.eye(6, 10, dtype=np.float32), bits=4, block_size=4, scheme="asymmetric", scale_dtype="float32"
    )
    path = tmp_path / "w.safetensors"
    qcore.save(path, {"a.weight": weight, "bias": np.ones(3, np.float32)})
    arrays = load_file(path)
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "a.weight.codes": ("uint8", (6, 5)),
        "a.weight.scales": (weight.scale_dtype, (6, 3)),
        "a.weight.offsets": ("float32", (6, 3)),
        "bias": ("float32", (3,)),
    }
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "qcore.weights.1"
    assert json.loads(metadata["weights"]) == {
        "a.weight": {"bits": 4, "block_size": 4, "scheme": "asymmetric", "shape": [6, 10]}
    }


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({"x": "text"}, TypeError, ["x", "str"]),
        ({"x": np.zeros(2, complex)}, TypeError, ["x", "complex128", "expected"]),
        ({3: np.zeros(2)}, TypeError, ["3", "strings"]),
        ({"w": None, "w.codes": np.zeros(2)}, ValueError, ["w.codes", "taken"]),
        ({"__metadata__": np.zeros(2)}, ValueError, ["__metadata__"]),
    ],
    ids=["text", "complex", "number", "collision", "metadata"],
)
def test_what_cannot_be_saved_leaves_the_old_file(tmp_path, tensors, error, words):
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"old")
    weight = qcore.quantize(np.ones((2, 4), np.float32))
    with pytest.raises(error) as caught:
        qcore.save(path, {name: weight if value is None else value for name, value in tensors.items()})
    assert isinstance(caught.value, qcore.QcoreError)
    for word in ["save", *words]:
        assert word in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]
    assert path.read_bytes() == b"old"


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="absent"):
        qcore.save(tmp_path / "absent" / "w.safetensors", {"x": np.zeros(2)})

    class Torn(dict):
        """Its second pass, in which the data are written, fails."""

        passes = 0

        def items(self):
            self.passes += 1
            if self.passes == 2:
                raise KeyboardInterrupt
            return super().items()

    with pytest.raises(KeyboardInterrupt):
        qcore.save(tmp_path / "w.safetensors", Torn(x=np.zeros(2)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_are_those_that_the_umask_leaves_and_it_is_never_changed(tmp_path, monkeypatch, mask):
    before = os.umask(mask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)
            qcore.save(tmp_path / "new", {"x": np.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_permissions_of_an_existing_file_are_kept(tmp_path, mode):
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(mode)
    qcore.save(tmp_path / "old", {"x": np.zeros(2)})
    assert (tmp_path / "old").stat().st_mode & 0o777 == mode
    assert list(qcore.load(tmp_path / "old")) == ["x"]


def test_content_is_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch):
    calls, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(os.fstat(handle).st_size), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("replace"), replace(*names)))
    qcore.save(tmp_path / "w.safetensors", {"x": np.zeros(2)})
    assert calls == [(tmp_path / "w.safetensors").stat().st_size, "replace"]


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/real")
    for value in (1.0, 2.0):  # the file is absent, then there
        qcore.save(tmp_path / "link", {"x": np.array(value)})
        assert (tmp_path / "link").is_symlink()
        assert [file.name for file in (tmp_path / "there").iterdir()] == ["real"]
        assert qcore.load(tmp_path / "there" / "real")["x"] == value
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("absent/real")
    for name, words in [("loop", "symbolic links"), ("lost", "there is no folder .*absent, expected one: .*lost")]:
        with pytest.raises(OSError, match=words):
            qcore.save(tmp_path / name, {"x": np.zeros(2)})
        assert (tmp_path / name).is_symlink()


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="it is a device, a pipe or a socket, expected the name of a file: .*" + name):
            qcore.save(tmp_path / name, {"x": np.zeros(2)})
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "pipe"]
    with pytest.raises(IsADirectoryError, match="it is a folder, expected the name of a file"):
        qcore.save(tmp_path, {"x": np.zeros(2)})


def test_a_folder_that_takes_no_files(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(_files, "open", refuse, raising=False)  # root may write to any folder
    with pytest.raises(PermissionError) as caught:
        qcore.save(tmp_path / "w.safetensors", {"x": np.zeros(2)})
    expected = f"cannot create a file in the folder {tmp_path}: Permission denied: '{tmp_path / 'w.safetensors'}'"
    assert str(caught.value) == f"[Errno {errno.EACCES}] {expected}"


def test_a_full_disk_names_the_file(tmp_path):
    code = (
        "import resource, sys, numpy, qcore\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "qcore.save(sys.argv[1], {'x': numpy.zeros(1000)})"
    )
    path = tmp_path / "w.safetensors"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"OSError: [Errno {errno.EFBIG}] File too large: '{path}'"
    assert list(tmp_path.iterdir()) == []
