"""Refuses to be imported beside another project's files, and lets Windows find libqcore.

The public package index has a distribution ``qcore`` of another project, whose import package is called ``qcore`` too.
Installed beside ``libqcore``, each overwrites files of the other, and removing one removes files of both.
"""

import os
import sys

# Modules of the other project (1.11.1), of which this package has none.
_FOREIGN_FILES = ("asserts.py", "decorators.py", "microtime.py")


def _refuse_foreign_files(folder: str) -> None:
    for name in _FOREIGN_FILES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            raise ImportError(
                f"qcore: {path} belongs to the distribution qcore, another project of the same import name, and this "
                "module to the distribution libqcore; expected libqcore alone: "
                "pip uninstall qcore libqcore && pip install libqcore",
                name="qcore",
                path=path,
            )


_FOLDER = os.path.dirname(os.path.abspath(__file__))
_refuse_foreign_files(_FOLDER)
if sys.platform == "win32":  # whose modules have no search path of their own
    os.add_dll_directory(os.path.join(_FOLDER, "lib"))
