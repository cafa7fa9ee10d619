"""Converts weights, tables and GRUs to plain tensors and back."""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from qcore import _core
from qcore.lut.table import Table
from qcore.quantized_tensor import QuantizedTensor
from qcore.torch.packing import cached
from qcore.weight_encoding import WeightEncoding, pack_bits, unpack_bits

Parts = tuple["torch.Tensor | None", ...]

NAMES = ("codes", "scales", "offsets", "super_scales", "super_offsets")
"""Names of a weight's parts in a state_dict; plain weights have the first three."""

_ALIGNMENT = 64
_STEP_BYTES, _PANEL_ROWS, _WORD = 64, 16, 4  # the same as in src/formats/packed_layout.h


@dataclass(frozen=True)
class WeightFormat:
    """Describes the bytes of a packed weight by the arguments that follow the tensor in the operators' schemas.

    Attributes:
        encoding: of an encoded weight, the JSON of its :class:`qcore.WeightEncoding`, which says what the dtypes of a
            plain weight say: they are float32 then, and None for a weight without offsets.
    """

    shape: tuple[int, ...]
    bits: int
    block_size: int
    scale_dtype: torch.dtype
    offset_dtype: torch.dtype | None
    encoding: str | None = None

    @classmethod
    def of(cls, weight: QuantizedTensor) -> WeightFormat:
        """Read the format of a weight."""
        if weight.encoding is not None:
            offsets = None if weight.offset_dtype is None else torch.float32
            text = text_of_encoding(weight.encoding)
            return cls(weight.shape, weight.bits, weight.block_size, torch.float32, offsets, text)
        offset_dtype = None if weight.offset_dtype is None else getattr(torch, weight.offset_dtype)
        return cls(weight.shape, weight.bits, weight.block_size, getattr(torch, weight.scale_dtype), offset_dtype)

    def arguments(self) -> tuple[Any, ...]:
        """Return (shape, bits, block_size, scale_dtype, offset_dtype); ``encoding`` is the operators' last argument."""
        return self.shape, self.bits, self.block_size, self.scale_dtype, self.offset_dtype

    @property
    def blocks(self) -> int:
        """Return P, the number of blocks of a row."""
        return -(-self.shape[1] // self.block_size)

    @property
    def taps(self) -> int:
        """Return Kh * Kw, 1 for a linear weight."""
        return self.shape[2] * self.shape[3] if len(self.shape) == 4 else 1

    @property
    def steps(self) -> int:
        """Return the number of 64-byte steps of a panel and tap."""
        codes = 4 if self.bits == 8 else 8
        if self.blocks == 0:
            return 0
        last = self.shape[1] - (self.blocks - 1) * self.block_size
        return (self.blocks - 1) * -(-self.block_size // codes) + -(-last // codes)

    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of a plain weight's codes, scales and offsets, each rounded up to a multiple of 64."""
        panels = -(-self.shape[0] // _PANEL_ROWS)
        count = panels * self.blocks * _PANEL_ROWS

        def bytes_of(dtype: torch.dtype | None) -> int:
            return 0 if dtype is None else -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

        codes = panels * self.taps * self.steps * _STEP_BYTES
        return codes, bytes_of(self.scale_dtype), bytes_of(self.offset_dtype)

    def pieces(self) -> list[tuple[int, int]]:
        """Return where a plain weight's codes, scales and offsets begin, and their bytes without what fills them up."""
        panels = -(-self.shape[0] // _PANEL_ROWS)
        codes, scales, _ = self.sizes()
        found = [(0, codes)]
        for begin, dtype in ((codes, self.scale_dtype), (codes + scales, self.offset_dtype)):
            if dtype is not None:
                found.append((begin, panels * self.blocks * _PANEL_ROWS * dtype.itemsize))
        return found

    def of_rows(self, rows: int) -> WeightFormat:
        """Return the format of a weight that differs in its number of rows."""
        return replace(self, shape=(rows, *self.shape[1:]))


def text_of_encoding(encoding: WeightEncoding) -> str:
    """Return the JSON of an encoding."""
    return json.dumps(encoding.to_dict(), sort_keys=True)


@functools.lru_cache(maxsize=256)
def encoding_of_text(text: str) -> WeightEncoding:
    """Return the encoding of such JSON."""
    return WeightEncoding.from_dict(json.loads(text))


class _Shared:
    """Keeps results for tensors that several modules have, while tensors and results live, so that ties are kept."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def get(self, given: Parts, options: Any, make: Callable[[], tuple[Parts, WeightFormat]]) -> Any:
        """Return the tensors and format of an earlier ``make()`` for these tensors and options, or call it."""
        known = self._known.get(given[0])
        if known is not None and known[0] == options and known[1].are(given):
            tensors = known[2].living()
            if tensors is not None:
                return tensors, known[3]
        tensors, form = make()
        self._known[given[0]] = options, _Remembered(given), _Remembered(tensors), form
        return tensors, form


class _Remembered:
    """Refers to tensors without keeping them alive, and notices when one of them is written to."""

    def __init__(self, tensors: Parts) -> None:
        self._entries = [None if each is None else (weakref.ref(each), _version(each)) for each in tensors]

    def living(self) -> Parts | None:
        """Return the tensors if all of them still live, unchanged."""
        found: list[torch.Tensor | None] = []
        for entry in self._entries:
            tensor = None if entry is None else entry[0]()
            if entry is not None and (tensor is None or _version(tensor) != entry[1]):
                return None
            found.append(tensor)
        return tuple(found)

    def are(self, tensors: Parts) -> bool:
        """Return whether the remembered tensors are these, unchanged."""
        living = self.living()
        return living is not None and all(old is new for old, new in zip(living, tensors, strict=True))


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


_by_address: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
_moved, _unpacked, _loaded = _Shared(), _Shared(), _Shared()


def storage_of(weight: QuantizedTensor) -> torch.Tensor:
    """Return the memory of a weight as a tensor, uint8 [bytes]: no copy, and the same tensor for the same memory."""
    with torch.inference_mode(False):
        made: torch.Tensor = torch.from_dlpack(weight._handle.storage())
    known = _by_address.get(made.data_ptr())
    if known is not None and known.shape == made.shape and known.device == made.device:
        return known
    _by_address[made.data_ptr()] = made
    return made


def from_tensor(storage: torch.Tensor, form: WeightFormat, keep: bool = True) -> QuantizedTensor:
    """Return the weight that lies in a tensor; without ``keep`` it does not keep the tensor alive.

    A tensor at an address that is no multiple of 64 is copied.
    """
    if storage.data_ptr() % _ALIGNMENT:
        storage, keep = storage.clone(), True
    half = torch.float16
    return QuantizedTensor._of(
        _core.from_storage(
            storage.detach(),
            list(form.shape),
            form.bits,
            form.block_size,
            form.offset_dtype is None,
            form.scale_dtype == half,
            form.offset_dtype == half,
            keep,
            None if form.encoding is None else encoding_of_text(form.encoding)._native(),
        )
    )


def stacked(storages: Sequence[torch.Tensor], form: WeightFormat) -> tuple[torch.Tensor, WeightFormat]:
    """Return plain weights of one format after each other, as :func:`qcore.concatenate` does on any device.

    Args:
        storages: memory of each weight.
        form: of each weight; its rows are whole panels of 16.
    """
    whole = form.of_rows(len(storages) * form.shape[0])
    with torch.inference_mode(False):
        made = storages[0].new_zeros(sum(whole.sizes()))
    for (source, size), (target, _) in zip(form.pieces(), whole.pieces(), strict=True):
        for number, storage in enumerate(storages):
            begin = target + number * size
            made[begin : begin + size] = storage[source : source + size]
    return made, whole


def member(storage: torch.Tensor, whole: WeightFormat, count: int, number: int) -> tuple[torch.Tensor, WeightFormat]:
    """Return a copy of one of the weights that :func:`stacked` has put after each other, and its format.

    Args:
        storage: their memory.
        whole: their format.
        count: how many there are.
        number: which one.
    """
    form = whole.of_rows(whole.shape[0] // count)
    with torch.inference_mode(False):
        made = storage.new_zeros(sum(form.sizes()))
    for (target, size), (source, _) in zip(form.pieces(), whole.pieces(), strict=True):
        begin = source + number * size
        made[target : target + size] = storage[begin : begin + size]
    return made, form


def viewed(storage: torch.Tensor, form: WeightFormat) -> QuantizedTensor:
    """Return the weight that lies in a tensor of a graph, made once for each memory."""
    weight: QuantizedTensor = cached((storage,), (form,), lambda: from_tensor(storage, form, keep=False))
    return weight


def _has_values(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def unpack(storage: torch.Tensor, form: WeightFormat) -> Parts:
    """Return the parts of a packed weight by :data:`NAMES`, on its device, None for those that it lacks.

    Codes are int8 of the weight's shape, or for 4 bits uint8 [N, ceil(K / 2)] as of ``nibbles()``; scales and offsets
    float16 where that is exact, else float32, [N, P]. An encoded weight has the parts of
    :meth:`qcore.QuantizedTensor.from_encoded`; numbers of fewer than 8 bits lie one after the other in uint8
    [N, ceil(columns * bits / 8)], the first in the lowest bits. The result is the same for modules that share a weight,
    as long as it lives.
    """

    def make() -> tuple[Parts, WeightFormat]:
        if not _has_values(storage):
            return _empty_parts(storage.device, form), form
        with torch.inference_mode(False):
            weight = from_tensor(storage, form).to("cpu")
            parts = _plain_parts(weight, form) if form.encoding is None else _encoded_parts(weight)
            return tuple(None if each is None else each.to(storage.device) for each in parts), form

    parts: Parts = _unpacked.get((storage,), form, make)[0]
    return parts


def _plain_parts(weight: QuantizedTensor, form: WeightFormat) -> Parts:
    codes = weight.nibbles() if form.bits == 4 else weight.codes()
    scales = weight.scales().astype(weight.scale_dtype)
    offsets = None if weight.offset_dtype is None else weight.offsets().astype(weight.offset_dtype)
    arrays = (codes, scales, offsets, None, None)
    return tuple(None if each is None else torch.from_numpy(each) for each in arrays)


def _encoded_parts(weight: QuantizedTensor) -> Parts:
    assert weight.encoding is not None
    parts = weight._encoded_parts(lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype)))
    for name, bits in weight.encoding.widths().items():
        parts[name] = torch.from_numpy(pack_bits(parts[name].numpy(), bits))
    return tuple(parts[name] for name in NAMES)


def _stored_arrays(encoding: WeightEncoding, shape: Sequence[int], block_size: int) -> dict[str, Any]:
    """Return shape and dtype of the parts of an encoded weight in a state_dict, by name; None for those it lacks."""
    arrays: dict[str, Any] = dict(encoding.arrays(shape, block_size))
    for name, bits in encoding.widths().items():
        (rows, columns), dtype = arrays[name]
        arrays[name] = (rows, -(-columns * bits // 8)), dtype
    return arrays


def _empty_parts(device: torch.device, form: WeightFormat) -> Parts:
    if form.encoding is not None:
        arrays = _stored_arrays(encoding_of_text(form.encoding), form.shape, form.block_size)
        return tuple(
            None if about is None else torch.empty(about[0], dtype=getattr(torch, about[1]), device=device)
            for about in (arrays[name] for name in NAMES)
        )
    rows, columns = form.shape[0], form.shape[1] * form.taps
    codes = (rows, -(-columns // 2)) if form.bits == 4 else form.shape
    return (
        torch.empty(codes, dtype=torch.uint8 if form.bits == 4 else torch.int8, device=device),
        torch.empty((rows, form.blocks), dtype=form.scale_dtype, device=device),
        None if form.offset_dtype is None else torch.empty((rows, form.blocks), dtype=form.offset_dtype, device=device),
        None,
        None,
    )


def names_of(form: WeightFormat) -> tuple[str, ...]:
    """Return the names of the parts that a weight of a format has in a state_dict."""
    if form.encoding is None:
        return NAMES[:2] if form.offset_dtype is None else NAMES[:3]
    arrays = encoding_of_text(form.encoding).arrays(form.shape, form.block_size)
    return tuple(name for name in NAMES if arrays[name] is not None)


def pack(
    parts: Parts, shape: Sequence[int], bits: int, block_size: int, encoding: str | None, device: torch.device
) -> tuple[torch.Tensor, WeightFormat]:
    """Return the packed weight of parts as :func:`unpack` returns them, on a device, and its format.

    The same codes give the same weight.

    Raises:
        QcoreValueError, QcoreTypeError: a part has another shape, dtype or range.
    """

    def make() -> tuple[Parts, WeightFormat]:
        given = [None if each is None else each.detach().cpu() for each in parts]
        if encoding is None:
            weight = QuantizedTensor.from_parts(
                *given[:3], bits=bits, block_size=block_size, shape=shape if bits == 4 else None
            )
        else:
            weight = _from_stored(dict(zip(NAMES, given, strict=True)), shape, block_size, encoding_of_text(encoding))
        weight = weight.to(str(device))
        return (storage_of(weight),), WeightFormat.of(weight)

    (storage,), form = _loaded.get(parts, (tuple(shape), bits, block_size, encoding, device), make)
    return storage, form


def _from_stored(
    parts: dict[str, torch.Tensor | None], shape: Sequence[int], block_size: int, encoding: WeightEncoding
) -> QuantizedTensor:
    widths = encoding.widths()
    unpacked: dict[str, Any] = dict(parts)
    for name, expected in _stored_arrays(encoding, shape, block_size).items():
        part = parts[name]
        if expected is None or part is None:
            continue
        if tuple(part.shape) != expected[0] or part.dtype != getattr(torch, expected[1]):
            raise _core.QcoreValueError(
                f"{name} is {part.dtype} {list(part.shape)}, expected torch.{expected[1]} {list(expected[0])}"
            )
        if name in widths:
            columns = shape[1] if name == "codes" else -(-shape[1] // block_size)
            unpacked[name] = unpack_bits(part.numpy(), widths[name], columns)
    return QuantizedTensor.from_encoded(**unpacked, encoding=encoding, block_size=block_size)


def moved(storage: torch.Tensor, form: WeightFormat, device: torch.device) -> tuple[torch.Tensor, WeightFormat]:
    """Return a packed weight on another device, and its format there; the same weight for the same tensor.

    An encoded weight keeps its bytes and its format.
    """

    def make() -> tuple[Parts, WeightFormat]:
        if device.type != "meta" and _has_values(storage):
            weight = from_tensor(storage, form).to(str(device))
            return (storage_of(weight),), WeightFormat.of(weight)
        if form.encoding is not None:
            return (torch.empty(storage.shape, dtype=torch.uint8, device=device),), form
        there = form
        if device.type == "cuda":  # CUDA kernels read float32 parameters
            there = replace(form, scale_dtype=torch.float32, offset_dtype=form.offset_dtype and torch.float32)
        return (torch.empty(sum(there.sizes()), dtype=torch.uint8, device=device),), there

    (made,), there = _moved.get((storage,), (form, device), make)
    return made, there


def dequantized(storage: torch.Tensor, form: WeightFormat) -> torch.Tensor:
    """Return float32 [N, K] of a linear layer's plain weight, in operations that torch traces."""
    code_bytes, scale_bytes, _ = form.sizes()
    n, k = form.shape[0], form.shape[1]
    panels = -(-n // _PANEL_ROWS)
    words = storage[:code_bytes].view(panels, form.steps, _PANEL_ROWS, _WORD)
    if form.bits == 4:
        words = torch.stack([words & 15, words >> 4], dim=2)  # [panels, steps, 2, 16, 4]
        rows = words.permute(0, 3, 1, 2, 4).reshape(panels * _PANEL_ROWS, form.steps * 2 * _WORD)
    else:
        rows = words.permute(0, 2, 1, 3).reshape(panels * _PANEL_ROWS, form.steps * _WORD)

    def parameters(begin: int, dtype: torch.dtype) -> torch.Tensor:
        count = panels * form.blocks * _PANEL_ROWS
        values = storage[begin : begin + count * dtype.itemsize].view(dtype).view(panels, form.blocks, _PANEL_ROWS)
        return values.permute(0, 2, 1).reshape(panels * _PANEL_ROWS, form.blocks)[:n].float()

    # Gathered by index, because inductor of torch 2.13 leaves the columns of a short last block unwritten for
    # repeat_interleave followed by a slice.
    columns = torch.arange(k, device=storage.device)
    block = columns // form.block_size
    step = 8 if form.bits == 4 else 4
    place = block * (-(-form.block_size // step) * step) + columns % form.block_size
    codes = rows[:n].index_select(1, place).float() - (8 if form.bits == 4 else 128)
    wide = parameters(code_bytes, form.scale_dtype).index_select(1, block) * codes
    if form.offset_dtype is None:
        return wide
    return wide + parameters(code_bytes + scale_bytes, form.offset_dtype).index_select(1, block)


def table_parts(table: Table) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cut points, float32 [n + 1], and values as the table stores them."""
    return _tensor(table.cuts, "cpu"), _tensor(table.values, "cpu")


def table_of(cuts: torch.Tensor, values: torch.Tensor, range_reduction: str) -> Table:
    """Return the table of these parts, which is made once."""

    def make() -> Table:
        return Table.from_parts(cuts.detach().cpu(), values.detach().cpu(), range_reduction=range_reduction)

    table: Table = cached((cuts, values), (range_reduction,), make)
    return table


def gru_bytes(gru: Any) -> torch.Tensor:
    """Return the bytes of the file that ``QuantGRU.save`` writes, as uint8 [bytes]."""
    from qcore.gru.files.quantized import gru_to_bytes

    return torch.frombuffer(bytearray(gru_to_bytes(gru)), dtype=torch.uint8)


def gru_of(state: torch.Tensor) -> Any:
    """Return the QuantGRU of the bytes of such a file, which is made once."""

    def make() -> Any:
        from qcore.gru import QuantGRU
        from qcore.gru.files.quantized import gru_from_bytes

        data = state.detach().cpu().numpy().tobytes()
        layers, config, order = gru_from_bytes(data, "gru: the module's state")
        return QuantGRU(layers, config, **order)

    return cached((state,), ("gru",), make)


def _tensor(array: np.ndarray[Any, Any], device: str) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def lstm_bytes(lstm: Any) -> torch.Tensor:
    """Return the bytes of the file that ``QuantLSTM.save`` writes, as uint8 [bytes]."""
    from qcore.lstm.quantized import FILES

    return torch.frombuffer(bytearray(FILES.to_bytes(lstm)), dtype=torch.uint8)


def lstm_of(state: torch.Tensor) -> Any:
    """Return the QuantLSTM of the bytes of such a file, which is made once."""

    def make() -> Any:
        from qcore.lstm.quantized import FILES, QuantLSTM

        data = state.detach().cpu().numpy().tobytes()
        layers, config, order = FILES.from_bytes(data, "lstm: the module's state")
        return QuantLSTM(layers, config, **order)

    return cached((state,), ("lstm",), make)
