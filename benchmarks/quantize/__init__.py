"""What `qcore bench quantize` measures: floats into blocks of codes, and back."""
