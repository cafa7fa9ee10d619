"""CPU kernels on torch's threads: when they are used, that results stay the same, and forks."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, os
import numpy as np
import torch
import qcore, qcore.torch

def digest():
    rng = np.random.default_rng(0)
    weight = qcore.quantize(rng.standard_normal((300, 256), dtype=np.float32), bits=4, block_size=32)
    x = rng.standard_normal((9, 256), dtype=np.float32)
    return hashlib.sha256(qcore.linear(x, weight).tobytes()).hexdigest()

torch.set_num_threads(2)
torch.ones(1000, 1000) @ torch.ones(1000, 1000)
qcore.set_num_threads(3)
first = digest()
child = os.fork()
if child == 0:
    os._exit(0 if digest() == first and not qcore.info()["openmp"] else 1)
status = os.waitpid(child, 0)[1]
try:
    qcore.linear(np.zeros((1, 8), np.float32), qcore.quantize(np.ones((8, 256), np.float32), bits=8, block_size=32))
except qcore.QcoreValueError:
    print(qcore.info()["openmp"], first, status, digest() == first)
"""


def run(**variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "QCORE_OPENMP")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment | variables, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("variables", "shared"),
    [
        ({}, True),
        ({"QCORE_OPENMP": "0"}, False),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, False),
        ({"OMP_WAIT_POLICY": "passive", "QCORE_OPENMP": "1"}, True),
    ],
)
def test_the_same_bits_on_torchs_threads_and_on_our_own(variables, shared):
    done = run(**variables)
    assert done.returncode == 0, done.stderr
    own = run(QCORE_OPENMP="0").stdout.split()
    openmp, digest, status, again = done.stdout.split()
    assert (openmp, status, again) == (str(shared), "0", "True")
    assert digest == own[1]


FOLLOWED = """
import torch
import qcore, qcore.torch
found = []
for n in (1, 2, 1):
    torch.set_num_threads(n)
    found.append(qcore.get_num_threads())
qcore.set_num_threads(3)
torch.set_num_threads(1)
print(*found, qcore.get_num_threads(), qcore._core.available_cpus())
"""


@pytest.mark.parametrize("variables", [{}, {"QCORE_OPENMP": "0"}])
def test_the_number_of_threads_is_torchs_until_one_is_set(variables):
    environment = {name: value for name, value in os.environ.items() if name != "QCORE_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWED], env=environment | variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    *found, cpus = map(int, done.stdout.split())
    assert found == [1, min(2, cpus), 1, 3]


def test_another_value_of_the_variable_is_refused():
    done = run(QCORE_OPENMP="yes")
    assert done.returncode == 1
    assert "environment variable QCORE_OPENMP is 'yes', expected 0 or 1" in done.stderr
