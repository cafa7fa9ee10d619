"""The distribution's name, and the error beside the other project that is imported as qcore."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from qcore import _distribution

PACKAGE = Path(_distribution.__file__).parent
TYPER = Path(typer.__file__).parents[1]


def import_beside(folder, module, *, init):
    """Import a module of a copy of the package in ``folder``, without the packages that site finds."""
    package = folder / "qcore"
    for name in ("_distribution.py", "cli.py"):
        shutil.copy(PACKAGE / name, package / name)
    (package / "__init__.py").write_text(init)
    return subprocess.run(
        [sys.executable, "-S", "-c", f"import {module}"],
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{TYPER}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["asserts.py", "decorators.py", "microtime.py"])
@pytest.mark.parametrize(
    ("module", "init"),
    [
        ("qcore", (PACKAGE / "__init__.py").read_text(encoding="utf-8")),  # libqcore was installed last
        ("qcore.cli", ""),  # the other project was
    ],
)
def test_files_of_the_other_project_are_refused(tmp_path, module, init, name):
    (tmp_path / "qcore").mkdir()
    (tmp_path / "qcore" / name).touch()
    done = import_beside(tmp_path, module, init=init)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: qcore: {tmp_path / 'qcore' / name} belongs to the distribution qcore, another project of the "
        "same import name, and this module to the distribution libqcore; expected libqcore alone: "
        "pip uninstall qcore libqcore && pip install libqcore"
    )


def test_a_package_of_its_own_is_not_refused(tmp_path):
    (tmp_path / "qcore").mkdir()
    done = import_beside(tmp_path, "qcore._distribution", init="")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_has_none_of_the_files_that_it_refuses():
    assert not [name for name in _distribution._FOREIGN_FILES if (PACKAGE / name).exists()]
