"""What the fixed-point GRU and LSTM share: formats, ranges, calibration, float weights."""
