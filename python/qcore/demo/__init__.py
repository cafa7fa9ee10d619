"""A small trained model on real images, quantized and measured: what `qcore demo` runs.

data.py          the shipped weights and held-out test images
layers.py        the model's layers in NumPy
static_layers.py those of qcore.static, with formats from samples
operators.py     who computes a layer: NumPy in float, or qcore on quantized weights
model.py         the layers put together
run.py           accuracy, size and time of each configuration
report.py        the table and the JSON file
command.py       the command line
"""
