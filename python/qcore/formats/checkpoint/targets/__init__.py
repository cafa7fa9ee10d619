"""Formats that `qcore quantize` writes, one module per format, and folders of whole models."""
