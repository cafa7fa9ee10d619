"""Replaces the forward pass of a whole decoder by one native call.

model.py        ``fuse_`` and ``unfuse_``, and the forward pass of a fused model
structure.py    the parts of a model, found by the names and types of its modules
weights.py      linear layers of one input over one weight
observation.py  what a model does between its modules
stack.py        the native decoder of a model's parts
graphs.py       decoding steps as CUDA graphs
inputs.py       padding and positions of a call
trial.py        the fused layers compared with the unfused model
"""

import sys

from qcore.transformers.fuse import structure, weights
from qcore.transformers.fuse.model import FusedStack, LayerByLayerWarning, fuse_, unfuse_
from qcore.transformers.fuse.model import _remake as _remake

# Fused models that earlier versions pickled name these modules, and the classes above in this package.
sys.modules["qcore.transformers.fuse_structure"] = structure
sys.modules["qcore.transformers.fuse_weights"] = weights

__all__ = ["FusedStack", "LayerByLayerWarning", "fuse_", "unfuse_"]
