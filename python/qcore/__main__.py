"""`python -m qcore`: the same commands as the `qcore` script."""

import sys

from .cli import main

sys.exit(main())
