"""A fixed-point GRU: calibrated from a float one, integers only at run time, the same bits everywhere."""

from qcore._recurrent.formats import Format
from qcore._recurrent.golden import GoldenCheck
from qcore._recurrent.report import Report, ReportRow
from qcore._recurrent.search import Search, Trial
from qcore.gru.calibration import Calibrator
from qcore.gru.direction import Direction
from qcore.gru.formats import TENSORS, Config
from qcore.gru.golden import verify_golden
from qcore.gru.quantized import QuantGRU
from qcore.gru.weights import GruWeights

__all__ = [
    "TENSORS",
    "Calibrator",
    "Config",
    "Direction",
    "Format",
    "GoldenCheck",
    "GruWeights",
    "QuantGRU",
    "Report",
    "ReportRow",
    "Search",
    "Trial",
    "verify_golden",
]
