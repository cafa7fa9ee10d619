"""Functions by look-up tables: workloads, implementations and summary.

A result's weight_bytes are what one call reads and writes, its operations are elements, and read_fraction is of the
bandwidth of a copy of the same size and dtype.
"""
