#!/usr/bin/env python3
"""Checks what a source distribution holds: the files that git tracks, but for pyproject's exclusions, and PKG-INFO.

    python scripts/check_sdist.py SDIST

Outside a git checkout there is nothing to compare with; then only names and size are looked at.
"""

import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 6_000_000


def members(sdist: Path) -> dict[str, bytes]:
    """Content by name, without the leading folder."""
    with tarfile.open(sdist) as archive:
        files = {}
        for member in archive:
            if not member.isfile() or member.name.startswith("/") or ".." in Path(member.name).parts:
                raise ValueError(f"{sdist.name} holds {member.name}, expected plain files with relative names")
            content = archive.extractfile(member)
            assert content is not None
            files[member.name.partition("/")[2]] = content.read()
        return files


def tracked() -> set[str] | None:
    """Return the files that git tracks without those that pyproject excludes; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    excluded = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["sdist"]["exclude"]
    names = {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}
    return {name for name in names if not any(name == one or name.startswith(f"{one}/") for one in excluded)}


def problems(sdist: Path) -> list[str]:
    names = set(members(sdist))
    found = []
    if (size := sdist.stat().st_size) > MAX_BYTES:
        found.append(f"{sdist.name} has {size:,} bytes, expected at most {MAX_BYTES:,}")
    if (wanted := tracked()) is not None:
        wanted.add("PKG-INFO")
        found += [f"{sdist.name} holds {name}, which git does not track" for name in sorted(names - wanted)]
        found += [f"{sdist.name} lacks {name}, which git tracks" for name in sorted(wanted - names)]
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = problems(Path(arguments[0]))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
