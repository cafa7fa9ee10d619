"""Every operator takes the arrays of every library and gives back its own, with the values of NumPy's.

array-api-strict stands for all libraries that have the array API and no more: a namespace with from_dlpack, no in-place
tricks, no foreign dtypes. CuPy's arrays need a device: tests/python/gpu/test_cupy_cuda.py.
"""

import array_api_strict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from array_operators import cpu_operators, operators, sources

import qcore

LIBRARIES = {
    "numpy": (np.asarray, np.ndarray),
    "torch": (torch.from_numpy, torch.Tensor),
    "jax": (jnp.asarray, jax.Array),
    "array_api_strict": (array_api_strict.asarray, type(array_api_strict.asarray(0))),
}
NO_FLOAT16 = ("array_api_strict",)
SOURCES, OPERATORS = sources(), operators() | cpu_operators()


def arrays(library):
    given = {name: value for name, value in SOURCES.items() if value.dtype != np.float16 or library not in NO_FLOAT16}
    return {name: LIBRARIES[library][0](value.copy()) for name, value in given.items()}


def parts(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_operators(library, name):
    given, function = arrays(library), OPERATORS[name]
    if name.startswith("awq.") and library in NO_FLOAT16:  # its scales are float16
        given["scales"] = SOURCES["scales"]
    expected = function(SOURCES)
    if isinstance(expected, qcore.QuantizedTensor):
        assert function(given) == expected
        return
    # The results of awq.dequantize are of the library of its scales.
    kind = np.ndarray if name == "awq.dequantize" and library in NO_FLOAT16 else LIBRARIES[library][1]
    for got, wanted in zip(parts(function(given)), parts(expected), strict=True):
        assert isinstance(got, kind)
        assert str(got.dtype).rpartition(".")[2] == wanted.dtype.name
        np.testing.assert_array_equal(np.from_dlpack(got), wanted)


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_out(library):
    given = arrays(library)
    weight = qcore.quantize(SOURCES["weight"], bits=8, block_size=32)
    out = LIBRARIES[library][0](np.zeros((3, 20), np.float32))
    assert qcore.linear(given["x"], weight, out=out) is out
    np.testing.assert_array_equal(np.from_dlpack(out), qcore.linear(SOURCES["x"], weight))
    assert qcore.lut.silu(out, out) is out


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_wrong_shape_is_named(library):
    weight = qcore.quantize(SOURCES["weight"], bits=8, block_size=32)
    with pytest.raises(qcore.QcoreValueError, match=r"linear: x has shape \[3, 69\], expected its last dimension"):
        qcore.linear(arrays(library)["x"][:, 1:], weight)


def test_strided_views_of_the_array_api():
    x = array_api_strict.asarray(SOURCES["image"])
    np.testing.assert_array_equal(
        np.from_dlpack(qcore.lut.silu(array_api_strict.permute_dims(x, (0, 2, 3, 1))[:, ::2, :, 1:])),
        qcore.lut.silu(SOURCES["image"].transpose(0, 2, 3, 1)[:, ::2, :, 1:]),
    )
