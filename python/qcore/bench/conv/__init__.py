"""Convolutions with per-block weights: workloads, contenders and summary.

Layers are those of `qcore bench static`. A call goes from floats to floats.
"""
