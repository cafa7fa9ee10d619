"""Quantized models of transformers.

:func:`fuse_` makes a quantized decoder compute a token by one native call, :func:`unfuse_` undoes it. Importing this
package imports torch and transformers.
"""

from qcore.transformers.fuse import LayerByLayerWarning, fuse_, unfuse_

__all__ = ["LayerByLayerWarning", "fuse_", "unfuse_"]
