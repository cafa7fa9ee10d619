#!/usr/bin/env python3
"""Checks what shared libraries export: libqcore only what is in namespace qcore, a Python extension only its PyInit.

    python scripts/check_exports.py FILE_OR_FOLDER...

A folder is searched for libqcore.so* and _core*.so.
"""

import re
import subprocess
import sys
from pathlib import Path

LIBRARY = re.compile(r"(?:(?:typeinfo|typeinfo name|vtable) for )?qcore::")
# Symbols that the linker itself defines in older libraries.
LINKER = {"_init", "_fini", "_edata", "_end", "__bss_start"}


def exported(file: Path) -> list[str]:
    command = ["nm", "--dynamic", "--defined-only", "--demangle", "--format=posix", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = (re.sub(r" [A-Za-z] [0-9a-f]*(?: [0-9a-f]*)?$", "", line) for line in output.splitlines())
    return [name for name in names if name not in LINKER]


def problems(file: Path) -> list[str]:
    names = exported(file)
    if file.name.startswith("libqcore"):
        # A function template's or a conversion's demangled name begins with its return type.
        bad = [name for name in names if not LIBRARY.match(name)]
        expected = "qcore::... only"
    else:
        bad = [name for name in names if name != f"PyInit_{file.name.partition('.')[0]}"]
        expected = f"PyInit_{file.name.partition('.')[0]} only"
    if not names:
        return [f"{file}: exports nothing, expected {expected}"]
    return [f"{file}: exports {name}, expected {expected}" for name in bad]


def libraries(argument: str) -> list[Path]:
    path = Path(argument)
    if not path.is_dir():
        return [path]
    return sorted(
        file
        for pattern in ("libqcore.so*", "_core*.so")
        for file in path.rglob(pattern)
        if file.is_file() and not file.is_symlink()
    )


def main(arguments: list[str]) -> int:
    files = [file for argument in arguments for file in libraries(argument)]
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    found = [problem for file in files for problem in problems(file)]
    for problem in found:
        print(problem, file=sys.stderr)
    for file in files:
        print(f"{file}: {len(exported(file))} exported symbols")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
