"""A fixed-point LSTM: calibrated from a float one, integers only at run time, the same bits everywhere."""

from qcore._recurrent.formats import Format
from qcore.lstm.calibration import Calibrator
from qcore.lstm.direction import Direction
from qcore.lstm.formats import TENSORS, Config
from qcore.lstm.quantized import QuantLSTM
from qcore.lstm.weights import LstmWeights

__all__ = ["TENSORS", "Calibrator", "Config", "Direction", "Format", "LstmWeights", "QuantLSTM"]
