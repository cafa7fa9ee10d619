"""CuPy's arrays on a device: every operator takes them, returns them, and runs on CuPy's current stream.

CuPy installs without a device, but makes no array without one; so nothing of this runs on the CPU.
"""

import numpy as np
import pytest
from array_operators import operators, sources

import qcore
from qcore import _arrays

cupy = pytest.importorskip("cupy", reason="makes arrays of cupy")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)

pytestmark = pytest.mark.gpu

NAMES = list(operators())
two_devices = pytest.mark.skipif(cupy.cuda.runtime.getDeviceCount() < 2, reason="fewer than two CUDA devices")


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


@two_devices
@pytest.mark.parametrize("name", NAMES)
def test_operators_on_a_device_that_is_not_the_current_one(name):
    function, plain = operators("cuda:1")[name], operators()[name]
    with cupy.cuda.Device(1):
        given = {key: cupy.asarray(value) for key, value in sources().items()}
        cupy.cuda.Device(1).synchronize()
    with cupy.cuda.Device(0):
        made = parts(function(given))
    with cupy.cuda.Device(1):
        for got, wanted in zip(made, parts(plain(sources())), strict=True):
            assert got.device.id == 1
            np.testing.assert_allclose(cupy.asnumpy(got), wanted, rtol=2e-3, atol=2e-3)


@two_devices
def test_the_stream_is_that_of_the_device_of_the_array():
    with cupy.cuda.Device(1):
        x = cupy.zeros(3, cupy.float32)
        with cupy.cuda.Stream(non_blocking=True) as stream, cupy.cuda.Device(0):
            assert _arrays.CuPyBackend().stream(x) == stream.ptr
