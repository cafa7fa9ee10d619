"""qcore in transformers: models are quantized while they are loaded, saved, and opened with qcore's kernels.

Importing this package imports torch and transformers, registers the quantization method "qcore" with transformers and
wraps its ``get_hf_quantizer`` (:mod:`qcore.transformers.serving`).
"""

from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)

from qcore.transformers.config import QcoreConfig
from qcore.transformers.quantizer import QcoreQuantizer
from qcore.transformers.serving import disable, enable, install

if "qcore" not in AUTO_QUANTIZATION_CONFIG_MAPPING:
    register_quantization_config("qcore")(QcoreConfig)
    register_quantizer("qcore")(QcoreQuantizer)
install()

__all__ = ["QcoreConfig", "QcoreQuantizer", "disable", "enable"]
