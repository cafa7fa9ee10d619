"""Convolutions with per-block weights: workloads, implementations and summary.

Layers are those of `qcore bench static`. A call goes from floats to floats.
"""
