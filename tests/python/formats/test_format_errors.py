"""Arguments that several codecs refuse in the same words, and packages that are not installed."""

import sys

import numpy as np
import pytest

import qcore
from qcore import formats
from qcore.formats import gguf_blocks
from qcore.formats.onnx import matmul_nbits as nbits

CONVOLUTION = qcore.quantize(np.ones((8, 32, 3, 3), np.float32), block_size=32, scale_dtype="float16")
MATRIX = qcore.quantize(np.ones((8, 32), np.float32), block_size=32, scale_dtype="float16")

WRITERS = {
    "to_awq": formats.to_awq,
    "to_awq_gemv": formats.to_awq_gemv,
    "to_gptq": lambda weight: formats.to_gptq(weight, version=2),
    "to_mlx": formats.to_mlx,
    "to_gguf: w": lambda weight: gguf_blocks.raw_of("Q4_0", weight, "to_gguf: w"),
    "to_onnx: w": lambda weight: nbits.arrays_of(weight, "to_onnx: w"),
}


@pytest.mark.parametrize("where", WRITERS)
def test_writers_take_matrices_only(where):
    with pytest.raises(qcore.QcoreValueError, match=rf"^{where}: weight has shape \[8, 32, 3, 3\], expected \[N, K\]$"):
        WRITERS[where](CONVOLUTION)
    with pytest.raises(qcore.QcoreTypeError, match=f"^{where}: weight is a ndarray, expected a QuantizedTensor"):
        WRITERS[where](np.ones((8, 32), np.float32))


def test_gguf_kinds():
    with pytest.raises(qcore.QcoreValueError, match=r"^to_gguf: w: weight has plain codes of 4 bits"):
        gguf_blocks.raw_of("Q4_K", MATRIX, "to_gguf: w")


def test_big_endian_gguf(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "none", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("w", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(qcore.QcoreValueError, match=r"from_gguf: .*big\.gguf has big-endian numbers, expected little"):
        formats.from_gguf(tmp_path / "big.gguf", "w")


@pytest.mark.parametrize("shape", [(3,), (0, 8), (2, 7)])
def test_gptq_scales(shape):
    words = np.zeros((16, 8), np.int32)
    with pytest.raises(qcore.QcoreValueError) as caught:
        formats.from_gptq(words, np.ones(shape, np.float16), words, None, bits=4, version=2, block_size=32)
    assert str(caught.value) == f"from_gptq: scales has shape {list(shape)}, expected [P, 8]"


def test_arrays_of_another_library_that_numpy_cannot_read():
    class Elsewhere:
        shape, dtype = (6, 4), np.dtype(np.float32)

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise BufferError("no memory of its own")

    words = np.zeros((6, 16), np.uint32)
    with pytest.raises(qcore.QcoreTypeError) as caught:
        formats.from_mlx(words, Elsewhere(), Elsewhere(), bits=4, block_size=32)
    assert "from_mlx: scales" in str(caught.value)
    assert "no memory of its own" in str(caught.value)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("gguf", lambda folder: formats.from_gguf(folder / "m.gguf", "w")),
        ("gguf", lambda folder: formats.to_gguf(folder / "m.gguf", {"w": MATRIX})),
        ("onnx", lambda folder: formats.from_onnx(folder / "m.onnx")),
        ("onnx", lambda _: formats.to_onnx({"w": MATRIX})),
    ],
    ids=["from_gguf", "to_gguf", "from_onnx", "to_onnx"],
)
def test_packages_that_are_not_installed(tmp_path, monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(qcore.QcoreTypeError, match=rf"need the package {package}: pip install 'libqcore\[formats\]'"):
        call(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_reordered_tensor():
    for weight, error, words in [
        (np.ones((8, 32)), qcore.QcoreTypeError, "weight is a ndarray, expected a QuantizedTensor"),
        (CONVOLUTION, qcore.QcoreValueError, r"weight has shape \[8, 32, 3, 3\], expected \[N, K\]"),
    ]:
        with pytest.raises(error, match=f"^ReorderedTensor: {words}$"):
            qcore.ReorderedTensor(weight, np.arange(32))
    assert qcore.ReorderedTensor(MATRIX, np.arange(32)) != MATRIX
