"""Layers that other libraries have quantized, each of several tensors of a file."""
