#!/usr/bin/env python3
"""Runs the Python examples of README.md (or of the files named), each block on its own, as a reader would paste it.

A block that imports a package which is not installed, other than qcore, is reported as skipped.
"""

import ast
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def missing_packages(block: str) -> list[str]:
    names = set()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return sorted(name for name in names - {"qcore"} if importlib.util.find_spec(name) is None)


def check(path: Path) -> tuple[int, int]:
    """Numbers of blocks that failed and of blocks in the file."""
    failed = 0
    blocks = python_blocks(path.read_text())
    for number, block in enumerate(blocks, 1):
        where = f"{path.name}, Python block {number} of {len(blocks)}"
        missing = missing_packages(block)
        if missing:
            print(f"{where}: SKIPPED, {', '.join(missing)} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            # From a file in an empty folder, so that nothing of this tree is importable by accident.
            script = Path(folder) / "example.py"
            script.write_text(block)
            done = subprocess.run(
                [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False
            )
        print(f"{where}: {'ok' if done.returncode == 0 else 'FAILED'}")
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            failed += 1
    return failed, len(blocks)


def main(arguments: list[str]) -> int:
    results = [check(Path(argument)) for argument in arguments] or [check(README)]
    if not any(count for _, count in results):
        print("there are no Python blocks to run")
        return 1
    return 1 if any(failed for failed, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
