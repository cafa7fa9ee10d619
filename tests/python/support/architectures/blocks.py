"""Small networks by the structures of torchvision and timm, written in plain torch, and those of these packages."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from architectures.entry import BATCH, spread


@dataclass(frozen=True)
class Network:
    """A network of images by a function that makes it."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    size: int = 16
    package: str = "torch"
    bound: float = 0.1
    least_share: float = 0.9
    compiles: bool = True
    exports: bool = True

    def is_available(self) -> bool:
        """Return whether the package can be imported."""
        return not _failure(self.package)

    def missing(self) -> str:
        """Return why the package can't be imported."""
        return f"{self.package} can't be imported: {_failure(self.package)}"

    def make(self) -> nn.Module:
        """Return the network in evaluation mode, with seeded weights and statistics."""
        torch.manual_seed(0)
        made = self.build().eval()
        spread(made)
        return made

    def sample(self) -> dict[str, Any]:
        """Return seeded arguments of a call."""
        generator = torch.Generator().manual_seed(1)
        return {"x": torch.randn(BATCH, 3, self.size, self.size, generator=generator)}

    def call(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments."""
        return (), arguments


@functools.cache
def _failure(package: str) -> str:
    try:
        importlib.import_module(package)
    except Exception as error:  # a broken build raises anything
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


class Body(nn.Module):
    """A network of a stem, layers, and a classifier of pooled features."""

    def __init__(self, *layers: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.stem(x))
        return self.head(x.mean((2, 3)) if x.dim() == 4 else x.mean(1))


class Add(nn.Module):
    """The sum of x and layers of x, or of a projection of x."""

    def __init__(self, *layers: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), shortcut or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + self.shortcut(x)


class Concatenate(nn.Module):
    """Branches side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class SqueezeExcite(nn.Module):
    """Channels weighted by their means."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.expand(functional.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


class Permuted(nn.Module):
    """Layers of [B, H, W, C] on an image [B, C, H, W]."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Shuffle(nn.Module):
    """Channels of groups mixed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.channel_shuffle(x, 4)


class Tokens(nn.Module):
    """Layers of [B, T, C] on the pixels of an image."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(2).transpose(1, 2))


class Attention(nn.Module):
    """Self-attention by torch.nn.MultiheadAttention between a norm and a sum, as torchvision's ViT has it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


class FusedAttention(nn.Module):
    """Self-attention with one projection for q, k and v, as timm has it."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return x + self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))


class WindowAttention(nn.Module):
    """Attention whose function reads the weights, as torchvision's Swin has it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + _windows(self.norm(x), self.qkv.weight, self.proj.weight, self.qkv.bias, self.proj.bias)
        return x + self.mlp(x)


def _windows(x: torch.Tensor, qkv: Any, proj: Any, qkv_bias: Any, proj_bias: Any) -> torch.Tensor:
    q, k, v = functional.linear(x, qkv, qkv_bias).chunk(3, -1)
    return functional.linear(functional.scaled_dot_product_attention(q, k, v), proj, proj_bias)


class Mixer(nn.Module):
    """Layers over tokens and over channels by turns."""

    def __init__(self, tokens: int = 256, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return x + self.channels(x)


class UNet(nn.Module):
    """Down, up by a transposed convolution, and a connection between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        return self.last(torch.cat([x, self.up(functional.relu(self.down(x)))], 1))


def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Sequential:
    """Return a convolution, a norm and an activation."""
    options = {"padding": kernel // 2, "bias": False} | options
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, **options), nn.BatchNorm2d(outputs), nn.ReLU())


def _inverted(inner: int, *squeeze: nn.Module) -> Add:
    return Add(conv(16, inner, 1), conv(inner, inner, groups=inner), *squeeze, nn.Conv2d(inner, 16, 1))


def _torch(name: str, *layers: Callable[[], nn.Module], width: int = 16, **options: Any) -> Network:
    return Network(name, lambda: Body(*(layer() for layer in layers), width=width), **options)


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0), 2)


BLOCKS = (
    _torch("resnet-basic", lambda: Add(conv(16, 16), conv(16, 16)), lambda: nn.ReLU()),
    _torch(
        "resnet-bottleneck",
        lambda: Add(conv(16, 8, 1), conv(8, 8), nn.Conv2d(8, 32, 1), shortcut=nn.Conv2d(16, 32, 1)),
        width=32,
    ),
    _torch("resnext", lambda: Add(conv(16, 32, 1), conv(32, 32, groups=4), nn.Conv2d(32, 16, 1))),
    _torch("depthwise-separable", lambda: conv(16, 16, groups=16), lambda: conv(16, 32, 1), width=32),
    _torch("inverted-residual", lambda: _inverted(64)),
    _torch("squeeze-excite", lambda: conv(16, 16), lambda: SqueezeExcite(16, 4)),
    _torch("efficientnet", lambda: _inverted(64, SqueezeExcite(64, 4))),
    _torch(
        "mobilenet-v3",
        lambda: Add(
            conv(16, 32, 1), conv(32, 32, 5, groups=32), nn.Hardswish(), SqueezeExcite(32, 8), nn.Conv2d(32, 16, 1)
        ),
    ),
    _torch("regnet", lambda: Add(conv(16, 32, 1), conv(32, 32, groups=2), SqueezeExcite(32, 4), nn.Conv2d(32, 16, 1))),
    _torch(
        "densenet",
        lambda: Concatenate(nn.Identity(), conv(16, 16)),
        lambda: Concatenate(nn.Identity(), conv(32, 16)),
        width=48,
    ),
    _torch("vgg", lambda: conv(16, 32), lambda: nn.MaxPool2d(2), lambda: conv(32, 32), width=32),
    _torch(
        "inception",
        lambda: Concatenate(conv(16, 8, 1), conv(16, 8), nn.Sequential(conv(16, 4, 1), conv(4, 8, 5))),
        width=24,
    ),
    _torch(
        "inception-factorized",
        lambda: nn.Conv2d(16, 16, (1, 7), padding=(0, 3)),
        lambda: nn.Conv2d(16, 16, (7, 1), padding=(3, 0)),
    ),
    _torch("squeezenet", lambda: conv(16, 4, 1), lambda: Concatenate(conv(4, 16, 1), conv(4, 16)), width=32),
    _torch("shufflenet", lambda: conv(16, 16, 1, groups=4), Shuffle, lambda: conv(16, 16, groups=16)),
    _torch(
        "convnext",
        lambda: Add(
            nn.Conv2d(16, 16, 7, padding=3, groups=16),
            Permuted(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
        ),
    ),
    _torch("dilated", lambda: conv(16, 16, dilation=2, padding=2), lambda: conv(16, 16, dilation=4, padding=4)),
    _torch(
        "vit-torchvision",
        lambda: Tokens(Attention(), nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
    ),
    _torch(
        "vit-timm", lambda: Tokens(FusedAttention(), nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    ),
    _torch("swin-torchvision", lambda: Tokens(WindowAttention()), least_share=0.5),
    _torch("mlp-mixer", lambda: Tokens(Mixer())),
    _torch("transformer-encoder", lambda: Tokens(_encoder())),
    Network("u-net", UNet, least_share=0.7),
    _torch("reflection-padding", lambda: nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"), least_share=0.2),
)


def _torchvision(name: str, model: str, size: int = 32, **options: Any) -> Network:
    extra = {key: options.pop(key) for key in ("least_share", "bound") if key in options}

    def build() -> nn.Module:
        return importlib.import_module("torchvision.models").get_model(model, weights=None, num_classes=10, **options)

    return Network(name, build, size, "torchvision", **extra)


def _timm(name: str, model: str, size: int = 32, **options: Any) -> Network:
    extra = {key: options.pop(key) for key in ("least_share", "bound") if key in options}

    def build() -> nn.Module:
        return importlib.import_module("timm").create_model(model, num_classes=10, **options)

    return Network(name, build, size, "timm", **extra)


PACKAGED = (
    *(
        _torchvision(name, name.removeprefix("torchvision-"))
        for name in (
            "torchvision-resnet18",
            "torchvision-mobilenet_v2",
            "torchvision-mobilenet_v3_small",
            "torchvision-efficientnet_b0",
            "torchvision-regnet_y_400mf",
            "torchvision-shufflenet_v2_x0_5",
            "torchvision-squeezenet1_1",
            "torchvision-mnasnet0_5",
        )
    ),
    *(
        _timm(name, name.removeprefix("timm-"), size)
        for name, size in (
            ("timm-resnet10t", 64),
            ("timm-mobilenetv3_small_050", 64),
            ("timm-efficientnet_lite0", 64),
            ("timm-convnext_atto", 64),
            ("timm-regnetx_002", 64),
            ("timm-ghostnet_050", 64),
            ("timm-repvgg_a0", 64),
            ("timm-test_vit", 160),
            ("timm-test_efficientnet", 64),
            ("timm-test_byobnet", 64),
            ("timm-test_mambaout", 64),
            ("timm-test_convnext", 64),
        )
    ),
)
"""Models of the packages, where they can be imported."""

ENTRIES = (*BLOCKS, *PACKAGED)
