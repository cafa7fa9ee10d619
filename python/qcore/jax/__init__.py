"""Operators of qcore inside programs of jax: under ``jit``, ``vmap``, ``scan`` and, for :func:`linear`, ``grad``.

:func:`linear`, :func:`conv2d`, :func:`gru`, :func:`static` and :mod:`qcore.jax.lut` take the operators' own weights,
layers and tables, which are constants of the program: nodes of jax's trees without leaves. Importing this package
imports jax.
"""

from qcore.jax import constants, lut
from qcore.jax.convolution import conv2d
from qcore.jax.layers import gru, static
from qcore.jax.product import linear

constants.register()

__all__ = ["conv2d", "gru", "linear", "lut", "static"]
