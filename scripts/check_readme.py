#!/usr/bin/env python3
"""Runs the Python examples of README.md (or of the files named), each block on its own, as a reader would paste it.

- A `python` block is run; a `py` block is shown only.
- A `text` block right after one says what comes of it: "SomeError: message" is how it must end, anything else is what
  it must print. A final "..." stands for the rest.
- The code cells of a notebook (.ipynb) are run as one block, which must print what the notebook holds as output.
  Pictures are drawn, but not compared.
- A block that imports a package which is not installed, other than qcore, is reported as skipped, and with --all it is
  a failure.
"""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```\n(?:\n*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def python_blocks(text: str) -> list[tuple[str, str]]:
    """Return (code, what comes of it or "") of each block."""
    return _BLOCK.findall(text + "\n")


def notebook_block(text: str) -> tuple[str, str]:
    """Return the code of all cells of a notebook, and all that they printed."""
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    printed = ["".join(output["text"]) for cell in cells for output in cell["outputs"] if "text" in output]
    return "\n".join("".join(cell["source"]) for cell in cells), "".join(printed)


def missing_packages(block: str) -> list[str]:
    names = set()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return sorted(name for name in names - {"qcore"} if importlib.util.find_spec(name) is None)


def complaint(block: str, expected: str) -> str:
    """Return what is wrong with a block, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        # From a file in an empty folder, so that nothing of this tree is importable by accident.
        script = Path(folder) / "example.py"
        script.write_text(block)
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=folder,
            env=os.environ | {"MPLBACKEND": "Agg"},  # no windows, which would wait to be closed
            capture_output=True,
            text=True,
            check=False,
        )
    expected = expected.strip()
    fails = re.match(r"\w+Error: ", expected) is not None
    if fails != (done.returncode != 0):
        return f"{done.stdout}{done.stderr}" if done.returncode else f"it ran, and should have ended with\n{expected}\n"
    got = (done.stderr if fails else done.stdout).strip()
    if expected.endswith("..."):
        right = expected[:-3].rstrip() in got if fails else got.startswith(expected[:-3].rstrip())
    else:
        right = not expected or (got.endswith(expected) if fails else got == expected)
    return "" if right else f"expected\n{expected}\nand got\n{got}\n"


def check(path: Path, skipping: bool) -> tuple[int, int]:
    """Return the numbers of blocks that failed and of blocks in the file."""
    failed = 0
    text = path.read_text(encoding="utf-8")
    blocks = [notebook_block(text)] if path.suffix == ".ipynb" else python_blocks(text)
    for number, (block, expected) in enumerate(blocks, 1):
        where = f"{path.name}, Python block {number} of {len(blocks)}"
        missing = missing_packages(block)
        if missing:
            print(f"{where}: {'SKIPPED' if skipping else 'FAILED'}, {', '.join(missing)} is not installed")
            failed += not skipping
            continue
        wrong = complaint(block, expected)
        print(f"{where}: {'FAILED' if wrong else 'ok'}")
        if wrong:
            print(wrong)
            failed += 1
    return failed, len(blocks)


def main(arguments: list[str]) -> int:
    skipping = "--all" not in arguments
    files = [Path(argument) for argument in arguments if argument != "--all"] or [README]
    results = [check(file, skipping) for file in files]
    if not any(count for _, count in results):
        print("there are no Python blocks to run")
        return 1
    return 1 if any(failed for failed, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
