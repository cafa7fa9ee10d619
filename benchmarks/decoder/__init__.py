"""Decoders with random weights in the shape of a known model: a step's time and what it consists of."""
