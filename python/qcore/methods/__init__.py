"""Methods of quantization that need more than the weight: inputs of the layer, and what follows from them."""
