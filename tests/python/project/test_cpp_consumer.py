"""examples/cpp_consumer builds and runs against the installed package; tests/cpp tests `cmake --install`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qcore

ROOT = Path(__file__).resolve().parents[3]
CONSUMER = ROOT / "examples" / "cpp_consumer"

pytestmark = pytest.mark.skipif(not (CONSUMER / "CMakeLists.txt").is_file(), reason="needs a source tree")


def tool(name):
    """Return the program that the test extra installed, also where the environment's folder is not on PATH."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    assert found, f"{name} is part of libqcore[test] and was not found"
    return found


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_against_the_installed_package(tmp_path):
    cmake_dir = run(sys.executable, "-m", "qcore", "--cmake-dir").strip()
    assert (Path(cmake_dir) / "qcoreConfig.cmake").is_file()
    programs = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    run(tool("cmake"), "-S", CONSUMER, "-B", tmp_path, *programs, f"-Dqcore_DIR={cmake_dir}")
    run(tool("cmake"), "--build", tmp_path)
    # An empty environment: the library must be found through the program's own search path.
    lines = run(tmp_path / "consumer", env={}).splitlines()
    assert lines[0] == f"qcore {qcore.__version__}: 16 x 96 weights, 5.00 bits each"
    assert lines[1].startswith("kernel: int8_") or lines[1] == "kernel: reference"
    assert len([line for line in lines if line.startswith("y[")]) == 8
    assert lines[-1] == (
        "error: linear: x has shape [2, 16], expected its last dimension to be K = 96 of the weight [16, 96]"
    )
