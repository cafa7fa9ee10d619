#!/usr/bin/env python3
"""Checks a wheel: tags, size, contents, exported symbols, search paths, stable ABI, and the manylinux policy it meets.

    python scripts/check_wheel.py WHEEL

Needs the packages of scripts/wheel-requirements.txt, and nm (binutils).
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import check_exports
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[1]
TAGS = "cp311-abi3-"
MAX_BYTES = {"cpu": 4_000_000, "cuda": 18_000_000}
PACKAGE = {"py.typed", "_core.abi3.so", "_core.pyi", "lib/libqcore.so", "demo/digits.safetensors"}
CMAKE = {"qcoreConfig.cmake", "qcoreConfigVersion.cmake", "qcoreTargets.cmake", "qcoreTargets-release.cmake"}
DIST_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def expected(info: str) -> set[str]:
    """Return all files: those of Python and headers in the sources, and those of the build. ``info`` is .dist-info."""
    python = {f"qcore/{path.relative_to(ROOT / 'python/qcore')}" for path in (ROOT / "python/qcore").rglob("*.py")}
    headers = {f"qcore/{path.relative_to(ROOT)}" for path in (ROOT / "include/qcore").rglob("*.h")}
    made = {f"qcore/{name}" for name in PACKAGE} | {f"qcore/lib/cmake/qcore/{name}" for name in CMAKE}
    return python | headers | made | {f"{info}/{name}" for name in DIST_INFO}


def contents_problems(wheel: Path, names: set[str]) -> list[str]:
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    wanted = expected(info)
    return [f"holds {name}, which nothing expects" for name in sorted(names - wanted)] + [
        f"lacks {name}" for name in sorted(wanted - names)
    ]


def search_paths(library: Path) -> list[str]:
    """Return RPATH and RUNPATH."""
    with library.open("rb") as file:
        sections = [section for section in ELFFile(file).iter_sections() if isinstance(section, DynamicSection)]
        tags = [tag for section in sections for tag in section.iter_tags()]
        values = [
            getattr(tag, tag.entry.d_tag[3:].lower()) for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        ]
    return [path for value in values for path in value.split(":")]


def library_problems(folder: Path) -> list[str]:
    found = []
    for library in check_exports.libraries(str(folder)):
        found += [problem.removeprefix(f"{folder}/") for problem in check_exports.problems(library)]
        found += [
            f"{library.name} has the search path {path}, expected $ORIGIN or below"
            for path in search_paths(library)
            if path != "$ORIGIN" and not path.startswith("$ORIGIN/")
        ]
    return found


def tool(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, "-m", name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise RuntimeError(f"{name} {' '.join(map(str, arguments))}: status {done.returncode}, {lines[-1]}")
    return done.stdout


def policy(wheel: Path) -> str:
    """Return the oldest platform tag that the wheel's symbols allow, e.g. manylinux_2_35_x86_64."""
    report = json.loads(tool("auditwheel", "show", "--json", wheel))
    return str(report["overall_tag"])


def check(wheel: Path) -> tuple[list[str], str]:
    """Return what is wrong with it, and its policy."""
    kind = "cuda" if wheel.parent.name == "cuda" else "cpu"
    found = []
    if TAGS not in wheel.name:
        found.append(f"has not the tags {TAGS.strip('-')}")
    if (size := wheel.stat().st_size) > MAX_BYTES[kind]:
        found.append(f"has {size:,} bytes, expected at most {MAX_BYTES[kind]:,}")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        found += contents_problems(wheel, {name for name in archive.namelist() if not name.endswith("/")})
        archive.extractall(folder)
        found += library_problems(Path(folder))
    reached = "not looked at"
    if not found:  # the tools need a wheel that is whole
        try:
            reached = policy(wheel)
            if not reached.startswith("manylinux"):
                found.append(f"meets no manylinux policy: auditwheel says {reached}")
            tool("abi3audit", "--strict", wheel)
        except RuntimeError as error:
            found.append(str(error))
    return [f"{wheel.name} ({kind}) {problem}" for problem in found], reached


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found, reached = check(Path(arguments[0]).resolve())
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{arguments[0]}: {reached}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
