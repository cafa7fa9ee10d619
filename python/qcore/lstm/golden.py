"""Golden files of LSTMs: inputs, parameters, every intermediate of every step and outputs; and their check.

A file is safetensors, all tensors int32, so that a checker needs no more than the sizes in its header. Of each layer l
and direction d (0 or 1, which runs from the last step to the first):

- ``l.x`` [T, B, C], ``l.d.h0`` [B, S], ``l.d.c0`` [B, H]: codes; S is the size of h, P with a projection, else H;
- ``l.d.options`` [5]: half to even, interpolated tables (0 or 1 each), bits of weights, of biases, reverse;
- ``l.d.formats`` [14, 4]: bits, signed, exponent and zero point in the order of :data:`qcore.lstm.TENSORS`; with a
  projection [15, 4], m last;
- ``l.d.parameters.w`` [4H, C], ``.r`` [4H, S], ``.b`` and the three ``_exponents`` [4H]; ``.projection`` [P, H] and its
  exponents [P], if it has one; ``.peepholes`` [3, H] of i, f and o, and their exponents [3], likewise;
- ``l.d.table_i``, ``_f``, ``_g``, ``_o``, ``_c_tanh``: a code for each code of the argument, lowest first;
- ``l.d.wx``, ``l.d.rh`` [T, B, 4H] and, [T, B, H], ``i_pre``, ``f_pre``, ``g_pre``, ``o_pre``, ``i``, ``f``, ``g``,
  ``o``, ``c``, ``c_tanh``, with a projection ``m``, and ``h`` [T, B, S];

and ``y`` [T, B, directions * S], ``last_h`` [layers * directions, B, S] and ``last_c`` [layers * directions, B, H].
"""

from __future__ import annotations

import os

from qcore._recurrent import golden
from qcore.lstm.integers import Cell


def verify_golden(path: str | os.PathLike[str]) -> golden.GoldenCheck:
    """Compute everything in a golden file again, in NumPy integers, without the library's kernels.

    Each tensor is computed from the file's tensors before it, so that one wrong number is one difference.

    Args:
        path: a file of :meth:`QuantLSTM.golden`, or one in its layout: ``help(qcore.lstm.golden)``.

    Raises:
        QcoreValueError, QcoreTypeError: naming the first tensor, step, row and channel that differ, or what the file
            lacks.
        OSError: it can't be read.
    """
    return golden.verify(Cell, path)
