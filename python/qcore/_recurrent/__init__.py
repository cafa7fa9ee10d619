"""Formats, ranges, calibration, float weights and files, which the fixed-point GRU and LSTM share."""
