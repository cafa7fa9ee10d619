"""Connects qcore with transformers, which then quantizes models while loading them, and saves and opens them.

Importing this package imports torch and transformers, registers the quantization method "qcore" with transformers and
wraps its ``get_hf_quantizer`` (``qcore.transformers.serving``). :func:`fuse_` makes a quantized decoder compute a
token by one native call, :func:`unfuse_` undoes it.
"""

# ruff: noqa: E402 - the version is checked first, because the other imports fail with an older one
import transformers as _transformers

_OLDEST = "5.20"
if [int(part) for part in _transformers.__version__.split(".")[:2]] < [int(part) for part in _OLDEST.split(".")]:
    raise ImportError(
        f"qcore.transformers needs transformers {_OLDEST} or later, {_transformers.__version__} is installed: "
        "pip install 'libqcore[transformers]'"
    )

from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)

from qcore.transformers.adopting import adopt_
from qcore.transformers.config import QcoreConfig
from qcore.transformers.fuse.model import LayerByLayerWarning, fuse_, unfuse_
from qcore.transformers.quantizer import QcoreQuantizer
from qcore.transformers.serving import disable, enable, install

if "qcore" not in AUTO_QUANTIZATION_CONFIG_MAPPING:
    register_quantization_config("qcore")(QcoreConfig)
    register_quantizer("qcore")(QcoreQuantizer)
install()

__all__ = ["LayerByLayerWarning", "QcoreConfig", "QcoreQuantizer", "adopt_", "disable", "enable", "fuse_", "unfuse_"]
