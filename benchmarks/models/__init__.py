"""Language models with random weights, each implementation in a process of its own."""
