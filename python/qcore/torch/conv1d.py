"""Defines convolutions of sequences, computed as those of images of one row."""

from __future__ import annotations

from typing import Any

import torch

from qcore import _core
from qcore.torch.weighted import Conv2d


class Conv1d(Conv2d):
    """Computes a convolution over sequences with a per-block quantized weight, in the place of ``torch.nn.Conv1d``.

    It is a :class:`Conv2d` over images of one row, whose arguments it has; without gradients. Made by
    :meth:`from_float`. A call takes float32, float16 or bfloat16 [N, Ci, L] or [Ci, L] and returns a tensor of that
    dtype.

    Args:
        weight: a QuantizedTensor [Co, Ci / groups, 1, K].
        bias, stride, padding, dilation, groups, compute, activation, dtype: as for :class:`Conv2d`.
    """

    kind = "conv1d"

    @classmethod
    def from_float(cls, module: torch.nn.Conv1d, **options: Any) -> Conv1d:
        """Quantize a ``torch.nn.Conv1d``.

        Args:
            module: float32, float16 or bfloat16, on any device, where the result will be too.
            options: as for :meth:`Conv2d.from_float`.

        Raises:
            QcoreValueError, QcoreTypeError: module is no such convolution, it pads with other values than zeros, or an
                option is impossible.
        """
        if not isinstance(module, torch.nn.Conv1d):
            raise _core.QcoreTypeError(
                f"Conv1d.from_float: module is a {type(module).__name__}, expected a torch.nn.Conv1d"
            )
        made: Conv1d = super().from_float(as_conv2d(module), **options)
        made.train(module.training)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the convolution.

        Args:
            x: float32, float16 or bfloat16 [N, Ci, L] or [Ci, L].

        Returns:
            [N, Co, Lo] or [Co, Lo] of x's dtype, or of autocast's.

        Raises:
            QcoreValueError, QcoreTypeError: x has another shape, dtype or device.
        """
        if x.dim() not in (2, 3):
            raise _core.QcoreValueError(
                f"qcore.torch.Conv1d: x has shape {list(x.shape)}, expected [N, {self.in_channels}, L] or "
                f"[{self.in_channels}, L]"
            )
        return super().forward(x.unsqueeze(-2)).squeeze(-2)


def as_conv2d(module: torch.nn.Conv1d) -> torch.nn.Conv2d:
    """Return the float convolution of images of one row that computes the same; it shares the weight's memory."""
    padding: Any = module.padding if isinstance(module.padding, str) else (0, *module.padding)
    made = torch.nn.Conv2d(
        module.in_channels,
        module.out_channels,
        (1, *module.kernel_size),
        stride=(1, *module.stride),
        padding=padding,
        dilation=(1, *module.dilation),
        groups=module.groups,
        bias=False,
        padding_mode=module.padding_mode,
        device="meta",
    )
    made.weight = torch.nn.Parameter(module.weight.detach().unsqueeze(2), requires_grad=False)
    made.bias = None if module.bias is None else torch.nn.Parameter(module.bias.detach(), requires_grad=False)
    return made
