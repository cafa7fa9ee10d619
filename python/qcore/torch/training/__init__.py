"""Trains quantized recurrent layers: forward in the integers that are deployed, backward straight through them."""
