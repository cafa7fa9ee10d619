"""Everything around the operators: import, information, threads, fork, memory, exported symbols."""

import gc
import os
import re
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import array_operators
import numpy as np
import pytest

import qcore


@pytest.fixture
def restore_threads():
    before = qcore.get_num_threads()
    yield
    qcore.set_num_threads(before)


def problem(seed=0, m=40, n=300, k=500):
    """Make a product large enough for several threads."""
    rng = np.random.default_rng(seed)
    weight = qcore.quantize(rng.standard_normal((n, k), dtype=np.float32), scheme="asymmetric")
    return rng.standard_normal((m, k), dtype=np.float32), weight


def run_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


def run_python(code, **environment):
    return run_process(code, **environment).stdout


# Import and information


def test_import_is_light():
    code = "import sys, qcore; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    modules = set(run_python(code).split())
    assert {"qcore", "numpy"} <= modules
    heavy = {"torch", "jax", "cupy", "ml_dtypes", "typer", "rich", "safetensors", "matplotlib", "scipy", "hypothesis"}
    assert not modules & heavy


def test_nothing_is_left_at_exit():
    """Check that the objects of every operator are freed before the interpreter ends."""
    code = """
import sys
from qcore import _core
_core.set_leak_warnings(True)
import array_operators
arrays = array_operators.sources()
results = {name: operator(arrays) for name, operator in array_operators.operators().items()}
print(len(results))
"""
    done = run_process(code, PYTHONPATH=str(Path(array_operators.__file__).parent))
    assert int(done.stdout) > 10
    assert "leaked" not in done.stderr, done.stderr


def test_leaks_are_reported():
    """Check that the test above would see an object that is left."""
    code = """
import ctypes
import numpy as np
from qcore import _core, quantize
_core.set_leak_warnings(True)
weight = quantize(np.ones((1, 8), np.float32), bits=8, block_size=8)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(weight._handle))
"""
    assert "leaked 1 instances" in run_process(code).stderr


def test_formats_and_gru_are_imported_when_asked_for():
    code = """if True:
        import sys, qcore
        assert not {"qcore.formats", "qcore.gru"} & set(sys.modules)
        print(qcore.formats.from_awq.__name__, qcore.save.__name__, qcore.gru.QuantGRU.__name__)
        assert {"formats", "gru", "load", "save"} <= set(dir(qcore))
    """
    assert run_python(code).split() == ["from_awq", "save", "QuantGRU"]


def test_operators_import_nothing_more():
    code = """if True:
        import sys, numpy as np, qcore
        before = set(sys.modules)
        weight = qcore.quantize(np.ones((4, 8), np.float32))
        qcore.linear(np.ones((2, 8), np.float16), weight, np.ones(4, np.float32), activation="relu")
        qcore.quantize_activations(np.ones((2, 8), np.float32), 4)
        print(*sorted(name for name in set(sys.modules) - before if not name.startswith(("qcore", "numpy"))))
    """
    assert run_python(code).split() == []


def test_public_names():
    assert all(hasattr(qcore, name) for name in qcore.__all__)
    assert sorted(qcore.__all__) == qcore.__all__
    assert "torch" in dir(qcore)
    assert "torch" not in qcore.__all__


def test_info():
    info = qcore.info()
    assert list(info) == ["version", "isa", "threads", "openmp", "cuda", "library"]
    assert info["version"] == qcore.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", info["version"])
    known = {"avx2", "avxvnni", "avx512vnni", "avx512bf16", "amx", "amxbf16", "neon", "dotprod", "i8mm"}
    assert set(info["isa"]) <= known
    assert info["threads"] == qcore.get_num_threads()
    assert Path(info["library"]).is_file()
    cuda = info["cuda"]
    assert list(cuda) == ["built", "device_count", "reason", "devices"]
    assert len(cuda["devices"]) == cuda["device_count"]
    assert bool(cuda["reason"]) == (cuda["device_count"] == 0)


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert version("libqcore") == qcore.__version__


# Threads


@pytest.mark.usefixtures("restore_threads")
def test_set_and_get_threads():
    for n in (1, 3, 1024, np.int64(2)):
        qcore.set_num_threads(n)
        assert qcore.get_num_threads() == n


def test_where_the_number_of_threads_comes_from():
    def threads(**variables):
        return int(run_python("import qcore; print(qcore.get_num_threads())", **variables))

    cpus = len(os.sched_getaffinity(0))
    none = {"QCORE_NUM_THREADS": "", "OMP_NUM_THREADS": ""}
    assert 1 <= threads(**none) <= cpus  # fewer where a quota says so
    assert threads(**none | {"OMP_NUM_THREADS": "3"}) == 3
    assert threads(**none | {"OMP_NUM_THREADS": "5,2"}) == 5
    assert threads(**none | {"OMP_NUM_THREADS": "many"}) <= cpus
    assert threads(**none | {"OMP_NUM_THREADS": "3", "QCORE_NUM_THREADS": "4"}) == 4


@pytest.mark.usefixtures("restore_threads")
def test_more_threads_than_work_and_fewer_again():
    x, weight = problem()
    expected = qcore.linear(x, weight)
    for n in (16, 2, 1, 5):
        qcore.set_num_threads(n)
        np.testing.assert_array_equal(qcore.linear(x, weight), expected)


@pytest.mark.usefixtures("restore_threads")
def test_many_python_threads_at_once():
    """Each with its own problem and mode; one of them at a time has the pool, the others work alone."""
    qcore.set_num_threads(2)
    modes = ("float", "int8", "int8_asym", "int16")
    problems = [(problem(seed, m=5 + seed), modes[seed % 4]) for seed in range(8)]
    expected = [qcore.linear(x, weight, compute=mode) for (x, weight), mode in problems]
    start = threading.Barrier(8)

    def work(index):
        (x, weight), mode = problems[index]
        start.wait(timeout=60)
        for _ in range(15):
            np.testing.assert_array_equal(qcore.linear(x, weight, compute=mode), expected[index])
        return qcore.last_kernel("linear")

    with ThreadPoolExecutor(8) as executor:
        kernels = list(executor.map(work, range(8)))
    for name, (_, mode) in zip(kernels, problems, strict=True):
        assert name.partition("_")[0] in (mode.partition("_")[0], "reference")


def test_first_use_of_a_weight_by_many_threads():
    """The sums of an asymmetric product are computed at the first use, once."""
    x, weight = problem(seed=1, m=3, n=70)
    expected = qcore.linear(x, problem(seed=1, m=3, n=70)[1], compute="int8_asym")
    start = threading.Barrier(4)

    def work(_):
        start.wait(timeout=60)
        return qcore.linear(x, weight, compute="int8_asym")

    with ThreadPoolExecutor(4) as executor:
        for y in executor.map(work, range(4)):
            np.testing.assert_array_equal(y, expected)


def test_forcing_a_kernel_holds_for_the_calling_thread_only():
    x, weight = problem(m=2, n=20)
    qcore.linear(x, weight)
    free = qcore.last_kernel("linear")

    def elsewhere():
        qcore.linear(x, weight)
        return qcore.last_kernel("linear")

    with qcore.force_kernel("linear", "reference"), ThreadPoolExecutor(1) as executor:
        assert executor.submit(elsewhere).result(timeout=60) == free
        assert elsewhere() == "reference"


def test_last_kernel_of_a_thread_that_ran_none():
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(qcore.last_kernel, "linear").result(timeout=60) == ""


def test_gil_is_released():
    """A waiting Python thread gets its turn between the two ends of a call, and nowhere else."""
    x, weight = problem(m=100, n=1000, k=1000)

    def seen_inside_a_call():
        go, seen = threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: (go.wait(60), seen.set()))
        thread.start()
        with qcore.force_kernel("linear", "reference"):  # the longest call
            go.set()
            qcore.linear(x, weight)
            result = seen.is_set()
        thread.join(timeout=60)
        return result

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread is made to give up the GIL: only linear's own release lets the other run
    try:
        # The operating system may wake the other thread late; not every time.
        assert any(seen_inside_a_call() for _ in range(50))
    finally:
        sys.setswitchinterval(interval)


# Fork

FORK = """
import os, signal, sys
import numpy as np
import qcore
qcore.set_num_threads(4)
rng = np.random.default_rng(0)
x = rng.standard_normal((40, 500), dtype=np.float32)
weight = qcore.quantize(rng.standard_normal((300, 500), dtype=np.float32))
expected = qcore.linear(x, weight)  # starts the workers

def threads():
    return len(os.listdir("/proc/self/task"))

def same():
    return all(np.array_equal(qcore.linear(x, weight), expected) for _ in range(20))

def child(depth):
    signal.alarm(60)  # a hang is a failure, not a hang of the tests
    # The child starts workers of its own.
    good = threads() == 1 and same() and threads() == 4
    if good and depth:
        good = forked(depth - 1)
    os._exit(0 if good else 1)

def forked(depth):
    pid = os.fork()
    if pid == 0:
        child(depth)
    good = same()
    return os.waitpid(pid, 0)[1] == 0 and good

for _ in range(5):
    if not forked(1):
        sys.exit("a forked process hung or computed something else")
"""


def test_fork():
    run_python(FORK)


FORK_WHILE_BUSY = """
import os, signal, sys, threading
import numpy as np
import qcore
qcore.set_num_threads(3)
rng = np.random.default_rng(0)
x = rng.standard_normal((40, 500), dtype=np.float32)
weight = qcore.quantize(rng.standard_normal((300, 500), dtype=np.float32))
expected = qcore.linear(x, weight)
stop = threading.Event()

def busy():
    while not stop.is_set():
        qcore.linear(x, weight)

thread = threading.Thread(target=busy)
thread.start()
statuses = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if np.array_equal(qcore.linear(x, weight), expected) else 1)
    statuses.append(os.waitpid(pid, 0)[1])
stop.set()
thread.join()
sys.exit(f"statuses {statuses}" if any(statuses) else 0)
"""


def test_fork_while_another_thread_computes():
    run_python(FORK_WHILE_BUSY, PYTHONWARNINGS="ignore::DeprecationWarning")


# Memory


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_calls_do_not_leak():
    """A leak of one output, weight or scratch buffer per call would be far more than the allowance."""
    rng = np.random.default_rng(2)
    w = rng.standard_normal((64, 512), dtype=np.float32)
    x = rng.standard_normal((32, 512), dtype=np.float32)
    bias = np.ones(64, np.float32)

    def once():
        weight = qcore.quantize(w, bits=8, block_size=32)
        for mode in ("float", "int8", "int8_asym", "int16"):
            qcore.linear(x, weight, bias, compute=mode)
        qcore.quantize_activations(x, 32)
        weight.dequantize()
        with pytest.raises(qcore.QcoreValueError):
            qcore.linear(x[:, 1:], weight)

    for _ in range(50):
        once()
    gc.collect()
    before = resident_bytes()
    for _ in range(400):
        once()
    gc.collect()
    assert resident_bytes() - before < 8 << 20


def test_arguments_are_released():
    x, weight = problem(m=2, n=20)
    bias, out = np.ones(20, np.float32), np.empty((2, 20), np.float32)
    before = [sys.getrefcount(value) for value in (x, bias, out, weight)]
    for _ in range(10):
        qcore.linear(x, weight, bias, out=out)
        with pytest.raises(qcore.QcoreValueError):
            qcore.linear(x, weight, bias[1:], out=out)
    assert [sys.getrefcount(value) for value in (x, bias, out, weight)] == before


# The library


def dynamic_symbols(path):
    """Return the names of the symbols that an ELF library of 64 bits defines for others."""
    data = Path(path).read_bytes()
    assert data[:5] == b"\x7fELF\x02"
    offset, (entry_size, count) = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<HH", data, 58)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * entry_size) for i in range(count)]
    symbols = next(section for section in sections if section[1] == 11)  # SHT_DYNSYM
    strings = sections[symbols[6]][4]
    names = []
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name, _, _, section = struct.unpack_from("<IBBH", data, at)
        if section:  # not SHN_UNDEF
            begin = strings + name
            names.append(data[begin : data.index(b"\0", begin)].decode())
    return names


def test_library_exports_only_its_namespace():
    names = dynamic_symbols(qcore.info()["library"])
    # Functions and objects of qcore::, and type information, its name and the vtable of its exceptions.
    ours = re.compile(r"_Z(NK?|T[ISV]N)5qcore")
    assert [name for name in names if not ours.match(name)] == []
    assert any(name.startswith("_ZN5qcore6linear") for name in names)
    assert len(names) > 20
