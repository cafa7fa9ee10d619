#!/usr/bin/env python3
"""Checks the objects that are compiled for one instruction set, after a build.

Such an object must not define weak symbols: an inline function or a template that another object defines too would be
merged by the linker, and baseline code could end up running AVX-512 instructions. What it exports to the rest of the
library must be in namespace qcore and name its instruction set.

    python scripts/check_isa_objects.py BUILD_FOLDER
"""

import re
import subprocess
import sys
from pathlib import Path

ISA_OBJECT = re.compile(r"_(avx2|avxvnni|avx512|amx|neon|generic128)\w*\.cpp\.o$")
WEAK = set("WwVvu")


def defined_symbols(file: Path) -> list[tuple[str, str]]:
    """Return (type letter of nm, demangled name) of every symbol that the object defines."""
    command = ["nm", "--defined-only", "--demangle", "--format=posix", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # NAME TYPE VALUE [SIZE]; a demangled name has spaces.
    matches = (re.match(r"(.*) ([A-Za-z]) [0-9a-f]*(?: [0-9a-f]*)?$", line) for line in output.splitlines())
    return [(match[2], match[1]) for match in matches if match]


def problems(file: Path) -> list[str]:
    isa = ISA_OBJECT.search(file.name)
    assert isa
    found = []
    for kind, name in defined_symbols(file):
        if kind in WEAK:
            found.append(f"{file}: weak symbol {name} ({kind}): make it static, or put it in an unnamed namespace")
        elif kind.isupper() and not (name.startswith("qcore::") and isa[1] in name.lower()):
            found.append(f"{file}: global symbol {name} ({kind}): expected qcore::... with {isa[1]} in its name")
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    objects = sorted(path for path in Path(arguments[0]).rglob("*.cpp.o") if ISA_OBJECT.search(path.name))
    if not objects:
        print(f"no objects of an instruction set under {arguments[0]}: build there first", file=sys.stderr)
        return 2
    found = [problem for path in objects for problem in problems(path)]
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{len(objects)} objects of an instruction set, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
