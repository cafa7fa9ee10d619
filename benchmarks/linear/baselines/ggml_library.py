"""The part of ggml's C interface that a matrix product needs, from the shared libraries inside a Python package."""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from ...implementation import Unavailable

# Packages that carry libggml: ggml-python and llama-cpp-python.
_PACKAGES = ("ggml", "llama_cpp")

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_version": (c_char_p, []),
    "ggml_log_set": (None, [c_void_p, c_void_p]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_graph_overhead_custom": (c_size_t, [c_size_t, c_bool]),
    "ggml_free": (None, [c_void_p]),
    "ggml_new_tensor_2d": (c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_mul_mat": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ggml_new_graph_custom": (c_void_p, [c_void_p, c_size_t, c_bool]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_quantize_chunk": (c_size_t, [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_tensor_alloc": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    "ggml_backend_free": (None, [c_void_p]),
    "ggml_backend_buft_name": (c_char_p, [c_void_p]),
    "ggml_backend_reg_dev_get": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_dev_supports_op": (c_bool, [c_void_p, c_void_p]),
    "ggml_backend_cpu_buffer_type": (c_void_p, []),
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_cpu_reg": (c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
}


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class Ggml:
    """The functions above as attributes without their prefix."""

    def __init__(self, libraries: list[ctypes.CDLL]) -> None:
        for name, (result, arguments) in _FUNCTIONS.items():
            setattr(self, name.removeprefix("ggml_"), self._find(libraries, name, result, arguments))
        self._init = self._find(libraries, "ggml_init", c_void_p, [_InitParams])
        self._quiet = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(lambda level, text, data: None)
        self.log_set(ctypes.cast(self._quiet, c_void_p), None)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @staticmethod
    def _find(libraries: list[ctypes.CDLL], name: str, result: Any, arguments: list[Any]) -> Any:
        for library in libraries:
            function = getattr(library, name, None)
            if function is not None:
                function.restype, function.argtypes = result, arguments
                return function
        raise Unavailable(f"this ggml has no {name}")

    def context(self, tensors: int, graph_size: int = 0) -> Any:
        """Room for the descriptions of tensors, and of as many graphs of that size."""
        size = self.tensor_overhead() * tensors + 4096
        if graph_size:
            size += (self.graph_overhead_custom(graph_size, False) + 64) * tensors
        return self._init(_InitParams(size, None, True))

    def interleaved_buffers(self) -> Any:
        """Return the buffer type whose weights are stored for its fastest kernels; None if this build has none."""
        name = b"ggml_backend_dev_get_extra_bufts"
        address = self.backend_reg_get_proc_address(self.backend_cpu_reg(), name)
        if not address:
            return None
        types = ctypes.CFUNCTYPE(POINTER(c_void_p), c_void_p)(address)(self.device())
        for index in range(16):
            if not types or not types[index]:
                break
            if self.backend_buft_name(types[index]) == b"CPU_REPACK":
                return types[index]
        return None

    def device(self) -> Any:
        return self.backend_reg_dev_get(self.backend_cpu_reg(), 0)


@cache
def ggml() -> Ggml:
    for package in _PACKAGES:
        found = importlib.util.find_spec(package)
        folder = Path(found.origin).parent / "lib" if found and found.origin else Path()
        names = ("libggml-base.so", "libggml-cpu.so")
        if all((folder / name).is_file() for name in names):
            try:
                return Ggml([ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in names])
            except OSError as error:
                raise Unavailable(f"libggml of {package} does not load: {error}") from error
    raise Unavailable("no installed package carries libggml-base.so and libggml-cpu.so (ggml-python, llama-cpp-python)")
