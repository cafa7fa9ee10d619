"""Oracles in NumPy of the methods of quantization that need inputs of the layer."""
