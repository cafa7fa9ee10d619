"""Arrays, float weights and quantized GRUs in files."""
