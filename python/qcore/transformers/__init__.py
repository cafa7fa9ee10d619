"""qcore in transformers: models are quantized while they are loaded, saved, and opened with qcore's kernels.

Importing this package imports torch and transformers and registers the quantization method "qcore" with transformers.
"""

from qcore.transformers.config import QcoreConfig
from qcore.transformers.quantizer import QcoreQuantizer
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)

if "qcore" not in AUTO_QUANTIZATION_CONFIG_MAPPING:
    register_quantization_config("qcore")(QcoreConfig)
    register_quantizer("qcore")(QcoreQuantizer)

__all__ = ["QcoreConfig", "QcoreQuantizer"]
