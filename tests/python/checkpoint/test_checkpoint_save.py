"""qcore.save and qcore.load: nothing is lost, and a file is whole or absent."""

import json

import encoded_weights
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

import qcore
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
