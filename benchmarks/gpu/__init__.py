"""Measures the operators on one CUDA device beside torch: `python -m benchmarks gpu OPERATOR`."""
