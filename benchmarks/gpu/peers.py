"""Public kernels for quantized linear layers on a device, where their packages are installed.

humming (package humming-kernels) compiles its kernels at first use. gemlite is written in Triton; it takes the
configurations that it ships for the H100, so that nothing is tuned here. CUTLASS's int8 kernels are in a library that
is built from cutlass_int8.cu; qcore quantizes x in front of them.
"""

from __future__ import annotations

import ctypes
import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import qcore

_HUMMING_TENSORS = ("weight", "weight_scale", "zero_point", "bias", "weight_scale_2")
_GEMLITE_BLOCK = 128
# Tiles of cutlass_int8.cu: rows, columns and k, in its order.
_CUTLASS_TILES = ("128x256x128", "256x128x128", "128x128x128", "64x256x128", "64x64x256", "64x128x256")


class HummingProduct:
    """The product of x with a weight [N, K] by humming's kernels."""

    def __init__(
        self, torch: Any, w: Any, bits: int, block_size: int, activations: str, dtype: Any, rows: Sequence[int]
    ) -> None:
        """Pack the weight and compile the kernels for these numbers of rows; a block size of 0 is one block per row.

        ``activations`` is humming's name of a dtype: "float16", "bfloat16" or "int8".
        """
        from humming.forward import humming_forward
        from humming.kernel.humming import HummingKernel
        from humming.layer import HummingLayer
        from humming.tune import get_heuristics_config

        layer = HummingLayer(
            shape_n=w.shape[0],
            shape_k=w.shape[1],
            weight_config={"dtype": f"int{bits}", "group_size": block_size},
            input_config={"dtype": activations},
            torch_dtype=dtype,
        ).to("cuda")
        layer.load_from_unquantized(w.to(dtype))
        layer.transform()
        config = layer.humming_config
        compute = json.dumps({"use_f16_accum": False, "use_m_major_input_scale": False, "gemm_type": "dense"})
        intervals = get_heuristics_config(layer_config=config, gemm_type="dense")
        if isinstance(intervals, dict):
            intervals = [(0, 1 << 30, intervals)]
        wanted = [list(entry) for entry in intervals if any(entry[0] < m <= entry[1] for m in rows)]
        tuning = json.dumps(wanted)
        HummingKernel.prepare_kernels(config.to_str(), compute, tuning, torch.cuda.current_device())
        self.torch = torch
        self.forward = functools.partial(humming_forward, config, compute_config=compute, tuning_config=tuning)
        tensors = {name: getattr(layer, name, None) for name in _HUMMING_TENSORS}
        self.tensors = {name: None if t is None else t.detach() for name, t in tensors.items()}

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values() if t is not None)

    def copy(self) -> Callable[[Any, Any], Any]:
        """Return a function of x and the result that multiplies with a copy of the weight."""
        tensors = {name: None if t is None else t.clone() for name, t in self.tensors.items()}
        locks = self.torch.zeros(2048, dtype=self.torch.int32, device="cuda")

        def multiply(x: Any, out: Any) -> Any:
            self.forward(inputs=x, outputs=out, locks=locks, **tensors)
            return out

        return multiply


class Peer(ABC):
    """A public kernel for weights of one format, and how activations enter it: "float" or "int8"."""

    name: str
    activations: str

    @abstractmethod
    def prepare(self, torch: Any, w: Any, rows: Sequence[int], copies: Callable[[int], int]) -> int:
        """Make ``multiply``, a function of x and the result for each copy of the weight; return the weight's bytes."""

    def release(self) -> None:
        self.multiply: list[Callable[[Any, Any], Any]] = []


class _Humming(Peer):
    def __init__(self, bits: int, block_size: int, activations: str) -> None:
        self.bits, self.block_size, self.activations = bits, block_size, activations
        form = f"g{block_size}" if block_size else "per channel"
        self.name = f"humming {activations} w{bits} {form}"

    def prepare(self, torch: Any, w: Any, rows: Sequence[int], copies: Callable[[int], int]) -> int:
        dtype = "float16" if self.activations == "float" else "int8"
        product = HummingProduct(torch, w, self.bits, self.block_size, dtype, torch.float16, rows)
        self.multiply = [product.copy() for _ in range(copies(product.nbytes))]
        return product.nbytes


class _Gemlite(Peer):
    def __init__(self, bits: int, activations: str) -> None:
        self.bits, self.activations = bits, activations
        self.name = f"gemlite {activations} w{bits} " + ("per channel" if bits == 8 else f"g{_GEMLITE_BLOCK}")

    def prepare(self, torch: Any, w: Any, rows: Sequence[int], copies: Callable[[int], int]) -> int:
        import gemlite
        from gemlite import core, helper

        gemlite.load_config(str(Path(gemlite.__file__).parent / "configs" / "h100.json"))
        add_nearest_configurations(core.GEMLITE_TRITON_CONFIG_CACHE, *w.shape)
        n, k = w.shape
        layers: list[Any]
        if self.bits == 8:
            maker = helper.A8W8_INT8_dynamic(device="cuda:0", dtype=torch.float16)
            nbytes = int(n * k + n * 4)
            layers = [maker.from_weights(w.half()) for _ in range(copies(nbytes))]
        else:
            blocks = w.view(n, -1, _GEMLITE_BLOCK)
            scales = blocks.abs().amax(2).clamp_min(1e-8) / 7
            codes = ((blocks / scales[..., None]).round().clamp(-8, 7) + 8).to(torch.uint8).view(n, k)
            scales = scales.half()
            maker = helper.A16W4_HQQ_INT(device="cuda:0", dtype=torch.float16)
            nbytes = int(n * k // 2 + 2 * scales.numel() * 2)
            zeros = scales * 0 + 8
            layers = [maker.from_weights(codes.clone(), scales.clone(), zeros.clone()) for _ in range(copies(nbytes))]
        self.multiply = [lambda x, out, layer=layer: layer(x) for layer in layers]
        return nbytes


class _Cutlass(Peer):
    activations = "int8"

    def __init__(self, library: str, tile: int) -> None:
        self.library, self.tile = library, tile
        self.name = f"cutlass int8 w8 per channel {_CUTLASS_TILES[tile]}"

    def prepare(self, torch: Any, w: Any, rows: Sequence[int], copies: Callable[[int], int]) -> int:
        function = ctypes.CDLL(self.library).cutlass_int8
        function.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 5 + [ctypes.c_int] * 4 + [ctypes.c_void_p]
        n, k = w.shape
        scales = w.abs().amax(1).clamp_min(1e-8) / 127
        codes = (w / scales[:, None]).round().to(torch.int8)
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count

        def multiply(x: Any, out: Any, codes: Any, scales: Any) -> Any:
            given = qcore.quantize_activations(x)
            arrays = (given.codes, codes, out, given.scales, scales)
            sizes = (x.shape[0], n, k, multiprocessors, torch.cuda.current_stream().cuda_stream)
            if status := function(self.tile, *(array.data_ptr() for array in arrays), *sizes):
                raise RuntimeError(f"{self.name}: status {status}")
            return out

        nbytes = int(n * k + n * 4)
        self.multiply = [
            functools.partial(multiply, codes=codes.clone(), scales=scales.clone()) for _ in range(copies(nbytes))
        ]
        return nbytes


def add_nearest_configurations(cache: dict[str, Any], n: int, k: int) -> None:
    """Give a shape that gemlite has not tuned the configurations of the tuned shape with the nearest N and K."""
    for kernel in cache.values():
        tuned = {tuple(json.loads(f"[{key.strip('()')}]")[1:3]) for key in kernel if "'" not in key}
        if not tuned or (n, k) in tuned:
            continue
        nearest = min(tuned, key=lambda shape: abs(shape[0] - n) / n + abs(shape[1] - k) / k)
        for key, config in list(kernel.items()):
            if "'" in key:
                continue
            m, of_n, of_k, group, *rest = json.loads(f"[{key.strip('()')}]")
            if (of_n, of_k) == nearest:
                kernel.setdefault(str((m, n, k, k if group == of_k else group, *rest)), config)


def peers_of(bits: int, block_size: int, depth: int, cutlass: str | None = None) -> list[Peer]:
    """Return the peers that store weights as qcore does with these bits and this block size.

    ``cutlass`` is the library of cutlass_int8.cu, if it was built.
    """
    one_block = block_size >= depth
    found: list[Peer] = []
    if one_block:
        found.append(_Humming(bits, 0, "int8"))
        if bits == 8:
            found.append(_Gemlite(8, "int8"))
            if cutlass:
                found += [_Cutlass(cutlass, tile) for tile in range(len(_CUTLASS_TILES))]
    else:
        if bits == 4 and block_size == _GEMLITE_BLOCK:
            found.append(_Gemlite(4, "float"))
        found += [_Humming(bits, block_size, "float"), _Humming(bits, block_size, "int8")]
    return found
