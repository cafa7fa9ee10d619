"""An older transformers is refused with a clear error."""

import subprocess
import sys


def test_an_older_version_is_refused_by_name():
    program = "import transformers; transformers.__version__ = '5.17.0'; import qcore.transformers"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    expected = "ImportError: qcore.transformers needs transformers 5.20 or later, 5.17.0 is installed: pip install"
    assert expected in done.stderr
