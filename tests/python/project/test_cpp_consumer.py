"""examples/cpp_consumer and the programs of docs/cpp build and run against the installed package.

tests/cpp tests `cmake --install`.
"""

import re
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


def build(source, folder):
    """Build a CMake project against the installed package."""
    cmake_dir = run(sys.executable, "-m", "qcore", "--cmake-dir").strip()
    assert (Path(cmake_dir) / "qcoreConfig.cmake").is_file()
    programs = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    run(tool("cmake"), "-S", source, "-B", folder, *programs, f"-Dqcore_DIR={cmake_dir}")
    run(tool("cmake"), "--build", folder)


def test_programs_of_the_pages(tmp_path):
    """Each `cpp` block is a program; the `text` block after it is what it prints, "..." standing for the rest."""
    pages = sorted((ROOT / "docs" / "cpp").glob("*.md"))
    block = re.compile(r"^```cpp\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
    programs = [pair for page in pages for pair in block.findall(page.read_text(encoding="utf-8"))]
    assert len(programs) == sum(page.read_text(encoding="utf-8").count("```cpp\n") for page in pages) > 0
    lines = ["cmake_minimum_required(VERSION 3.24)", "project(pages LANGUAGES CXX)", "find_package(qcore REQUIRED)"]
    for number, (code, _) in enumerate(programs):
        (tmp_path / f"p{number}.cpp").write_text(code, encoding="utf-8")
        lines.append(f"add_executable(p{number} p{number}.cpp)\ntarget_link_libraries(p{number} PRIVATE qcore::qcore)")
    (tmp_path / "CMakeLists.txt").write_text("\n".join(lines), encoding="utf-8")
    build(tmp_path, tmp_path / "build")
    for number, (code, expected) in enumerate(programs):
        printed = run(tmp_path / "build" / f"p{number}", env={}).strip()
        if expected.strip().endswith("..."):
            assert printed.startswith(expected.strip()[:-3]), code
        else:
            assert printed == expected.strip(), code


def test_against_the_installed_package(tmp_path):
    build(CONSUMER, tmp_path)
    # An empty environment: the library must be found through the program's own search path.
    lines = run(tmp_path / "consumer", env={}).splitlines()
    assert lines[0] == f"qcore {qcore.__version__}: 16 x 96 weights, 5.00 bits each"
    assert lines[1].startswith("kernel: int8_") or lines[1] == "kernel: reference"
    assert len([line for line in lines if line.startswith("y[")]) == 8
    assert lines[-1] == (
        "error: linear: x has shape [2, 16], expected its last dimension to be K = 96 of the weight [16, 96]"
    )
