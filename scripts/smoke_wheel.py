"""Check what an installed wheel must do on any machine: everything but CUDA, which needs a wheel with it and a driver.

python -I scripts/smoke_wheel.py cpu        # or cuda
"""

import sys

import numpy as np

import qcore

info = qcore.info()
expected = {"cpu": False, "cuda": True}[sys.argv[1]]
assert info["cuda"]["built"] == expected, f"CUDA backend: {info['cuda']['built']}, expected {expected}"

rng = np.random.default_rng(0)
weight = rng.standard_normal((65, 200), dtype=np.float32)
x = rng.standard_normal((7, 200), dtype=np.float32)
for bits, tolerance in ((8, 0.02), (4, 0.2)):
    quantized = qcore.quantize(weight, bits=bits, block_size=32, scheme="asymmetric")
    for compute in ("float", "int8", "int8_asym", "int16"):
        y = qcore.linear(x, quantized, compute=compute)
        kernel = qcore.last_kernel("linear")
        with qcore.force_kernel("linear", "reference"):
            np.testing.assert_array_equal(y, qcore.linear(x, quantized, compute=compute))
        error = np.abs(y - x @ weight.T).max() / np.abs(x @ weight.T).max()
        assert error < tolerance, (bits, compute, error)
        print(f"Python {sys.version.split()[0]}: {bits} bits, compute {compute}: kernel {kernel}, error {error:.4f}")

if info["cuda"]["device_count"] == 0:
    assert info["cuda"]["reason"], "no device and no reason"
    try:
        quantized.to("cuda")
    except qcore.CudaError as error:
        print(f"Python {sys.version.split()[0]}: CudaError as expected: {error}")
    else:
        raise AssertionError("a weight went to a device that does not exist")
