"""examples/cpp_consumer builds and runs against the installed package and against a prefix of `cmake --install`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qcore

ROOT = Path(__file__).resolve().parents[3]
CONSUMER = ROOT / "examples" / "cpp_consumer"

pytestmark = [
    pytest.mark.skipif(not (CONSUMER / "CMakeLists.txt").is_file(), reason="needs a source tree"),
    pytest.mark.xdist_group("cpp_consumer"),
]


def tool(name):
    """Return the program that the test extra installed, also where the environment's folder is not on PATH."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    assert found, f"{name} is part of libqcore[test] and was not found"
    return found


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def configure(source, build, *definitions):
    return run(
        tool("cmake"), "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", *definitions
    )


def build_and_run(build, *definitions):
    configure(CONSUMER, build, *definitions)
    run(tool("cmake"), "--build", build)
    # An empty environment: the library must be found through the program's own search path.
    return run(build / "consumer", env={})


def check(output):
    lines = output.splitlines()
    assert lines[0] == f"qcore {qcore.__version__}: 16 x 96 weights, 5.00 bits each"
    assert lines[1].startswith("kernel: int8_") or lines[1] == "kernel: reference"
    assert len([line for line in lines if line.startswith("y[")]) == 8
    assert lines[-1] == (
        "error: linear: x has shape [2, 16], expected its last dimension to be K = 96 of the weight [16, 96]"
    )


def test_against_the_installed_package(tmp_path):
    cmake_dir = run(sys.executable, "-m", "qcore", "--cmake-dir").strip()
    assert (Path(cmake_dir) / "qcoreConfig.cmake").is_file()
    check(build_and_run(tmp_path / "build", f"-Dqcore_DIR={cmake_dir}"))


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    build = folder / "build"
    configure(ROOT, build, "-DQCORE_CUDA=off", f"-DCMAKE_INSTALL_PREFIX={folder / 'usr'}")
    run(tool("cmake"), "--build", build)
    run(tool("cmake"), "--install", build)
    # The prefix must stand without the tree that it came from.
    shutil.rmtree(build)
    return folder / "usr"


def test_against_an_installed_prefix(prefix, tmp_path):
    check(build_and_run(tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"))


def test_prefix_holds_the_public_headers_and_a_versioned_library(prefix):
    public = {path.name for path in (ROOT / "include" / "qcore").glob("*.h")}
    assert {path.name for path in (prefix / "include" / "qcore").iterdir()} == public
    assert (prefix / "lib" / "libqcore.so").resolve().name == f"libqcore.so.{qcore.__version__}"
    targets = (prefix / "lib" / "cmake" / "qcore" / "qcoreTargets.cmake").read_text()
    assert str(ROOT) not in targets


def test_another_version_is_refused(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(p LANGUAGES NONE)\nfind_package(qcore 99 CONFIG REQUIRED)\n"
    )
    done = subprocess.run(
        [tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "99" in done.stderr
