"""Predicts the cycles of inner loops by llvm-mca, for processors that are not at hand: `python -m benchmarks.mca`."""
