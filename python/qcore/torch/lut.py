"""Defines activations by look-up tables as modules."""

from __future__ import annotations

from typing import Any

import torch

from qcore import _core, lut
from qcore.lut.table import Table
from qcore.torch import operators, parts
from qcore.torch.module import QuantizedModule


class LutActivation(QuantizedModule):
    """Applies a function by its look-up table, with the same bits on every processor; without gradients.

    Args:
        function: a name of :func:`qcore.lut.names`, or a :class:`qcore.lut.Table`.

    A call takes float32, float16 or bfloat16 of any shape and returns the same.
    """

    kind = "lut"
    _kept = ("cuts", "values")

    cuts: torch.Tensor
    values: torch.Tensor

    def __init__(self, function: str | Table) -> None:
        super().__init__()
        table = function if isinstance(function, Table) else lut.table(function)
        self.name, self.range_reduction = table.name, table.range_reduction
        with torch.inference_mode(False):
            cuts, values = parts.table_parts(table)
            self.register_buffer("cuts", cuts)
            self.register_buffer("values", values)

    @classmethod
    def from_float(cls, module: torch.nn.Module) -> LutActivation:
        """Make the module of an activation of ``torch.nn`` whose parameters a table of :func:`qcore.lut.names` has.

        Args:
            module: the activation.

        Raises:
            QcoreTypeError: there is no such table.
        """
        name = table_name(module)
        if name is None:
            raise _core.QcoreTypeError(
                f"LutActivation.from_float: module is {module!r}, expected one of "
                f"{', '.join(kind.__name__ for kind in _NAMES)} with torch's default parameters"
            )
        made = cls(name)
        made.train(module.training)
        return made

    @property
    def table(self) -> Table:
        """Return the table."""
        return parts.table_of(self.cuts, self.values, self.range_reduction)

    def config(self) -> dict[str, Any]:
        """Return name and range reduction, which ``load_state_dict`` compares with those of the state."""
        return {"kind": self.kind, "name": self.name, "range_reduction": self.range_reduction}

    def _configure(self, config: dict[str, Any]) -> None:
        self.name, self.range_reduction = config["name"], config["range_reduction"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the table's function to every element.

        Args:
            x: float32, float16 or bfloat16, any shape.

        Raises:
            QcoreTypeError: x has another dtype.
        """
        result: torch.Tensor = operators.lut(x, self.cuts, self.values, self.range_reduction)
        return result

    def extra_repr(self) -> str:
        return repr(self.name)


_NAMES: dict[type, str] = {
    torch.nn.SiLU: "silu",
    torch.nn.GELU: "gelu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    torch.nn.Mish: "mish",
    torch.nn.Softplus: "softplus",
    torch.nn.ELU: "elu",
    torch.nn.LeakyReLU: "leaky_relu",
    torch.nn.Hardswish: "hardswish",
    torch.nn.Hardsigmoid: "hardsigmoid",
}
_PARAMETERS = {"softplus": ("beta", 1), "elu": ("alpha", 1), "leaky_relu": ("negative_slope", 0.01)}
"""Maps a table's name to the parameter of the ``torch.nn`` module and the value that the table was made for."""


def table_name(module: torch.nn.Module) -> str | None:
    """Return the name of the table of an activation module, or None if it has no table."""
    name = _NAMES.get(type(module))
    if name == "gelu" and getattr(module, "approximate", "none") == "tanh":
        return "gelu_tanh"
    if name in _PARAMETERS:
        parameter, value = _PARAMETERS[name]
        return name if getattr(module, parameter) == value else None
    return name
