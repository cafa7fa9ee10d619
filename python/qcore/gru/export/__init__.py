"""Writes quantized GRUs for other programs, as C99."""
