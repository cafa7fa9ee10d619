"""AWQ weights: workloads, implementations and summary.

A result's weight_bytes are what a dequantization reads and writes, or else the weight's, and read_fraction is of the
bandwidth of a copy of as many. The operations of a dequantization are its weights.
"""
