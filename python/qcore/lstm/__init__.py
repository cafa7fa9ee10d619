"""A fixed-point LSTM: calibrated from a float one, integers only at run time, the same bits everywhere."""

from qcore._recurrent.formats import Format
from qcore._recurrent.golden import GoldenCheck
from qcore._recurrent.report import Report, ReportRow
from qcore._recurrent.search import Search, Trial
from qcore.lstm.calibration import Calibrator
from qcore.lstm.direction import Direction
from qcore.lstm.formats import TENSORS, Config
from qcore.lstm.golden import verify_golden
from qcore.lstm.quantized import QuantLSTM
from qcore.lstm.weights import LstmWeights

__all__ = [
    "TENSORS",
    "Calibrator",
    "Config",
    "Direction",
    "Format",
    "GoldenCheck",
    "LstmWeights",
    "QuantLSTM",
    "Report",
    "ReportRow",
    "Search",
    "Trial",
    "verify_golden",
]
