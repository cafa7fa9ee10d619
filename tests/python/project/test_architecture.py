"""The rules that keep the tree readable: who may include whom, file lengths, headers that stand alone, one version.

    python -> bindings -> include
    operators (src/linear, src/quantize, ...) -> recurrent, gemm, runtime, formats, simd, numerics, include
    recurrent -> runtime, formats, simd, numerics, include
    gemm -> runtime, formats, simd, numerics, include
    formats -> numerics, include
    runtime -> include
    simd -> formats, numerics
    numerics -> nothing of ours

A file for one instruction set, with everything that it includes, takes numerics, simd, gemm,
recurrent, formats/packed_layout.h, its folder's headers and intrinsics only.
"""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import qcore

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not (ROOT / "src" / "numerics").is_dir(), reason="needs a source tree")

SHARED = ("numerics", "simd", "formats", "runtime", "gemm", "activations", "recurrent")
MAY_INCLUDE = {
    "include": {"include"},
    "numerics": {"numerics"},
    "simd": {"simd", "formats", "numerics"},
    "formats": {"formats", "numerics", "include"},
    "runtime": {"runtime", "include"},
    "gemm": {"gemm", "runtime", "formats", "simd", "numerics", "include"},
    "recurrent": {"recurrent", "runtime", "formats", "simd", "numerics", "include"},
    "bindings": {"bindings", "include"},
}
CXX_SUFFIXES = {".cpp", ".h", ".cu", ".cuh"}
ISA_FILE = re.compile(r"_(avx2|avxvnni|avx512\w*|amx\w*|neon\w*|generic128)\.cpp$")
# An inline function of the standard library that is compiled in such a file could be the copy that the linker keeps.
ISA_SYSTEM_HEADERS = {"cstddef", "cstdint", "cstring", "math.h"}
ISA_SYSTEM_HEADERS |= {"immintrin.h", "emmintrin.h", "wasm_simd128.h", "arm_neon.h"}
LONGEST_FILE = 600
MOST_FILES = 20


def cxx_files(root):
    for folder in ("include", "src", "bindings"):
        yield from sorted(path for path in (root / folder).rglob("*") if path.suffix in CXX_SUFFIXES)


def includes(path):
    """Return (text as written, True for angle brackets) of every #include."""
    for bracket, text in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.MULTILINE):
        yield text, bracket == "<"


def resolve(root, path, text):
    """Return the file of ours that an include means, or None."""
    for base in (path.parent, root / "src", root / "include"):
        if (base / text).is_file():
            return (base / text).resolve()
    return None


def area(root, path):
    """Return include, bindings, numerics, formats, runtime or the name of an operator."""
    parts = path.relative_to(root.resolve()).parts
    return parts[1] if parts[0] == "src" else parts[0]


def include_violations(root):
    found = []
    of_one_isa = {path for _, path, *_ in isa_includes(root)}
    for path in cxx_files(root):
        here = area(root, path.resolve())
        allowed = MAY_INCLUDE.get(here, {here, *SHARED, "include"})
        if path.resolve() in of_one_isa:
            allowed = allowed | {"numerics", "simd", "gemm", "recurrent"}
        for text, _ in includes(path):
            target = resolve(root, path, text)
            if target is not None and area(root, target) not in allowed:
                name = path.relative_to(root)
                found.append(f"{name} includes {text}: {here} may include {', '.join(sorted(allowed))} only")
    return found


def isa_includes(root):
    """Return (ISA file, file, text, allowed) of every include in an ISA file and in what it takes along."""
    for start in cxx_files(root):
        if not ISA_FILE.search(start.name):
            continue
        operator = area(root, start.resolve())
        pending, seen = [start.resolve()], set()
        while pending:
            path = pending.pop()
            if path in seen:
                continue
            seen.add(path)
            for text, angled in includes(path):
                target = resolve(root, path, text)
                ours = target is not None and (
                    area(root, target) in (operator, "numerics", "simd", "gemm", "recurrent")
                    or target.name == "packed_layout.h"
                )
                if ours:
                    pending.append(target)
                yield start, path, text, ours or (target is None and angled and text in ISA_SYSTEM_HEADERS)


def isa_violations(root):
    found = []
    for start, path, text, allowed in isa_includes(root):
        if not allowed:
            through = "" if path == start.resolve() else f", through {path.name},"
            found.append(
                f"{start.relative_to(root)}{through} includes {text}: a file for one instruction set takes "
                "numerics, simd, gemm, recurrent, formats/packed_layout.h, its folder's headers and intrinsics only"
            )
    return found


def test_includes_follow_the_dependency_rule():
    assert not include_violations(ROOT), "\n".join(include_violations(ROOT))


def test_isa_files_include_nothing_that_baseline_code_could_share():
    assert any(ISA_FILE.search(path.name) for path in cxx_files(ROOT))
    assert not isa_violations(ROOT), "\n".join(isa_violations(ROOT))


def test_the_include_checks_see_violations(tmp_path):
    files = {
        "include/qcore/a.h": '#include "runtime/r.h"\n',
        "src/runtime/r.h": '#include "numerics/n.h"\n',
        "src/numerics/n.h": '#include "qcore/a.h"\n',
        "src/formats/packed_layout.h": '#include "linear/own.h"\n',
        "src/linear/own.h": "#include <vector>\n",
        "src/linear/x_avx2.cpp": '#include "linear/own.h"\n#include "runtime/r.h"\n#include <immintrin.h>\n',
        "src/gru/g.cpp": '#include "linear/own.h"\n#include "qcore/a.h"\n',
        "bindings/b.cpp": '#include "linear/own.h"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert {line.partition(":")[0] for line in include_violations(tmp_path)} == {
        "include/qcore/a.h includes runtime/r.h",
        "src/runtime/r.h includes numerics/n.h",
        "src/numerics/n.h includes qcore/a.h",
        "src/formats/packed_layout.h includes linear/own.h",
        "src/gru/g.cpp includes linear/own.h",
        "bindings/b.cpp includes linear/own.h",
    }
    assert {line.partition(":")[0] for line in isa_violations(tmp_path)} == {
        "src/linear/x_avx2.cpp, through own.h, includes vector",
        "src/linear/x_avx2.cpp includes runtime/r.h",
    }


def test_folders_are_small():
    """No folder has more files than a reader takes in at once."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("needs a git checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    files = [Path(name) for name in set(listed.split("\0")) if name and (ROOT / name).is_file()]
    assert len(files) > MOST_FILES
    counts = Counter(path.parent.as_posix() for path in files)
    assert not {folder: count for folder, count in counts.items() if count > MOST_FILES}


def test_the_files_that_the_design_names_are_there():
    """Paths in docs/design.md and CONTRIBUTING.md exist, and a path with a line has on it what the row says."""
    for page in ("docs/design.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text()
        for path in re.findall(r"`((?:src|python|bindings|tests)/[\w./]+\.\w+)`", text):
            assert (ROOT / path).is_file(), f"{page} names {path}"
        for path, number, symbol in re.findall(r"\| `([\w./]+):(\d+)` \| `([^`]+)`", text):
            line = (ROOT / path).read_text().splitlines()[int(number) - 1]
            assert symbol in line, f"{page}: line {number} of {path} is {line!r}, expected {symbol}"
    assert re.search(r"\| `[\w./]+:\d+` \|", (ROOT / "docs" / "design.md").read_text())


def test_comments_name_files_that_exist():
    """A path in a comment is the end of a path in the repository."""
    folders = ("include", "src", "bindings", "tests/cpp", "tests/cuda_host")
    sources = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in CXX_SUFFIXES]
    named = (*folders, "python", "docs", "tests/python", "scripts", "examples")
    places = "\n".join(f"/{p.relative_to(ROOT).as_posix()}\n" for folder in named for p in (ROOT / folder).rglob("*"))
    missing = {
        (str(source.relative_to(ROOT)), name)
        for source in sources
        for comment in re.findall(r"//(.*)", source.read_text())
        for name in re.findall(r"[\w/.-]*\w\.(?:cuh|cu|cpp|h|py|md)\b", comment)
        if f"/{name}\n" not in places and name != "dlpack.h"  # of DLPack itself
    }
    assert len(sources) > 100
    assert not missing


def test_files_are_short():
    suffixes = {*CXX_SUFFIXES, ".py", ".pyi"}
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in ("include", "src", "bindings", "python", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and "Do not edit" not in path.read_text()[:200]  # data made by a script
    }
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}


@pytest.mark.parametrize(
    "header",
    sorted(str(path.relative_to(ROOT / "include" / "qcore")) for path in (ROOT / "include" / "qcore").rglob("*.h")),
)
def test_public_header_compiles_alone(header):
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "building qcore needed a C++ compiler, and none is on PATH"
    command = [compiler, "-fsyntax-only", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-"]
    done = subprocess.run(
        [*command, f"-I{ROOT / 'include'}"],
        input=f"#include <qcore/{header}>\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_there_is_one_version():
    text = (ROOT / "include" / "qcore" / "version.h").read_text()
    assert re.search(r'#define QCORE_VERSION "([^"]+)"', text)[1] == qcore.__version__


def imported_modules(path):
    """Return (top-level name of a module, True if the import is optional) for every import of a Python file."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for attempt in ast.walk(tree)
        if isinstance(attempt, ast.Try) and any("ImportError" in ast.dump(handler) for handler in attempt.handlers)
        for statement in attempt.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        else:
            continue
        for name in names:
            yield name.partition(".")[0], id(node) in guarded


def test_dependencies_are_what_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]}
    # Loaded by the extension module itself.
    declared.remove("nanobind-backend")
    imported = set()
    for path in sorted((ROOT / "python").rglob("*.py")):
        # The adapters for a framework serve whoever imports that framework.
        adapted = {"torch", "jax"}.intersection(path.relative_to(ROOT).parts)
        if "vllm" in path.relative_to(ROOT).parts:
            adapted |= {"vllm", "torch"}
        if {"language_model", "transformers"}.intersection(path.relative_to(ROOT).parts):
            adapted = {"torch", "transformers", path.stem} if path.stem == "diffusers" else {"torch", "transformers"}
        for name, optional in imported_modules(path):
            if name in sys.stdlib_module_names or name == "qcore" or name in adapted:
                continue
            assert optional or name in declared, f"{path.relative_to(ROOT)} imports {name}, which nothing declares"
            imported.add(name)
    assert declared <= imported, f"declared and never imported: {sorted(declared - imported)}"
