"""Benchmark of quantization: floats to blocks of codes, and back."""
