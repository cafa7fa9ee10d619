"""CuPy's arrays on a device: every operator takes them, returns them, and runs on CuPy's current stream.

CuPy installs without a device, but makes no array without one; so nothing of this runs on the CPU.
"""

import numpy as np
import pytest
from array_operators import operators, sources

import qcore

cupy = pytest.importorskip("cupy", reason="makes arrays of cupy")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)

pytestmark = pytest.mark.gpu

NAMES = list(operators())


def parts(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", NAMES)
def test_operators(name):
    given = {key: cupy.asarray(value) for key, value in sources().items()}
    function, plain = operators("cuda")[name], operators()[name]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        made = parts(function(given))
        stream.synchronize()
    for got, wanted in zip(made, parts(plain(sources())), strict=True):
        assert isinstance(got, cupy.ndarray)
        assert got.dtype == wanted.dtype
        # Sums of floats may be in another order there.
        np.testing.assert_allclose(cupy.asnumpy(got), wanted, rtol=2e-3, atol=2e-3)


def test_out():
    weight = qcore.quantize(sources()["weight"], bits=8, block_size=32).to("cuda")
    x, out = cupy.asarray(sources()["x"]), cupy.zeros((3, 20), cupy.float32)
    assert qcore.linear(x, weight, out=out) is out
    assert bool((out == qcore.linear(x, weight)).all())
