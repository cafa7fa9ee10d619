"""Recurrent layers: workloads, implementations, summary and plot.

A case is a whole call on floats that gives floats, [T, B, C] -> [T, B, H], or one step of a stream with its state
carried from call to call. A result's weight_bytes are the weights', its operations are those of the two products.
"""
