"""Writes quantized recurrent layers for other programs, as C99."""
