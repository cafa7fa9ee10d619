"""Files of named tensors: opened lazily, saved and loaded, inspected, compared and quantized."""

from qcore.formats.checkpoint.reader import Checkpoint, open_checkpoint
from qcore.formats.checkpoint.records import TensorInfo
from qcore.formats.checkpoint.saving import load, save

__all__ = ["Checkpoint", "TensorInfo", "load", "open_checkpoint", "save"]
