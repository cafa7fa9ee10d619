"""Golden files of GRUs: inputs, parameters, every intermediate of every step and outputs; and their check.

A file is safetensors, all tensors int32, so that a checker needs no more than the sizes in its header. Of each layer l
and direction d (0 or 1, which runs from the last step to the first):

- ``l.x`` [T, B, C], ``l.d.h0`` [B, H]: codes;
- ``l.d.options`` [6]: fused, half to even, interpolated tables (0 or 1 each), bits of weights, of biases, reverse;
- ``l.d.formats`` [14, 4]: bits, signed, exponent and zero point in the order of :data:`qcore.gru.TENSORS`;
- ``l.d.parameters.w`` [3H, C], ``.r`` [3H, H], ``.bx``, ``.br`` and the four ``_exponents`` [3H];
- ``l.d.table_z``, ``_r``, ``_g``: a code for each code of the argument, lowest first;
- ``l.d.wx``, ``l.d.rh`` [T, B, 3H] and, [T, B, H], ``z_pre``, ``r_pre``, ``rb``, ``rrh``, ``g_pre``, ``z``, ``r``,
  ``g``, ``old_part``, ``new_part``, ``h``; without rrh, old_part and new_part if fused;
- with linear_before_reset = 0 ``l.d.rh`` [T, B, 2H] of z and r, and ``rh_g`` [T, B, H], the product of R and
  rrh = r * h; rrh is there if fused, too, but not rb;

and ``y`` [T, B, directions * H], ``last`` [layers * directions, B, H].
"""

from __future__ import annotations

import os

from qcore._recurrent import golden
from qcore.gru.integers import Cell


def verify_golden(path: str | os.PathLike[str]) -> golden.GoldenCheck:
    """Compute everything in a golden file again, in NumPy integers, without the library's kernels.

    Each tensor is computed from the file's tensors before it, so that one wrong number is one difference.

    Args:
        path: a file of :meth:`QuantGRU.golden`, or one in its layout: ``help(qcore.gru.golden)``.

    Raises:
        QcoreValueError, QcoreTypeError: naming the first tensor, step, row and channel that differ, or what the file
            lacks.
        OSError: it can't be read.
    """
    return golden.verify(Cell, path)
