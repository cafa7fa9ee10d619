"""Layers as other libraries write them into files, made and decoded by NumPy alone."""
