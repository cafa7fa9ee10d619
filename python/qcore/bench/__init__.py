"""`qcore bench`: this machine's limits, and qcore's operators beside NumPy and torch, if torch is installed.

`benchmarks/` in the repository builds on it: the same clock with many more libraries, sizes and devices.
"""
