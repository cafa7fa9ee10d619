"""The values of option strings, for signatures."""

from __future__ import annotations

from typing import Literal

Compute = Literal["float", "int8", "int8_asym", "int16"]
"""Form that the activations get inside an operator."""

LinearCompute = Literal["float", "int8", "int8_asym", "int16", "int8_token"]
"""Form that the activations get inside a linear layer."""

IntegerCompute = Literal["int8", "int8_asym", "int16"]
"""Form of activations as codes."""

Activation = Literal["relu", "relu6", "silu", "gelu"]
"""The function that an operator applies to its results, by name."""

Scheme = Literal["symmetric", "asymmetric"]
"""Whether blocks of a weight have offsets."""

Method = Literal["rtn", "mse", "awq", "gptq"]
"""How scales and codes are chosen: rounding to nearest, smallest squared error, the same weighed by samples, or columns
that compensate the errors of those before them."""

RangeMethod = Literal["minmax", "ema", "percentile", "mse"]
"""How a tensor's range follows from the values that were observed."""

Metric = Literal["mean_relative", "max_relative", "mean_absolute", "max_absolute"]
"""The error of a table that a fit minimizes."""

TableDtype = Literal["float16", "float32"]
"""The dtype of a table's values."""
