"""Stacks of decoder layers that run in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from qcore import _arrays, _checks, _core
from qcore._options import Compute
from qcore.decoder.cache import Caches, KeyValueCache, writable
from qcore.decoder.operators import ACTIVATIONS, LAYOUTS, optional
from qcore.linear import COMPUTE
from qcore.quantized_tensor import QuantizedTensor


@dataclasses.dataclass
class Layer:
    """Holds the weights of one layer of a :class:`Decoder`; None for parts that the layer does not have.

    The order of a layer::

        a = input_norm(x);  q, k, v = qkv a + bias;  q, k = rotary(q_norm(q)), rotary(k_norm(k));  cache k, v
        x += residual_multiplier * post_attention_norm(out attention(q) + bias)
        a = mlp_norm(x);  x += residual_multiplier * post_mlp_norm(down gated_activation(gate_up a + bias) + bias)

    Norm weights and biases are float32, float16 or bfloat16 arrays, which the decoder copies.

    Attributes:
        qkv: QuantizedTensor [(Hq + 2 * Hkv) * D, H]: all of q, then k, then v; or a sequence of weights of different
            formats with these rows in all, each of which is a product of its own.
        out: QuantizedTensor [H, Hq * D].
        gate_up: QuantizedTensor [2 * I, H]: all of the gate, then up; or a sequence, likewise.
        down: QuantizedTensor [H, I].
        input_norm: [H].
        mlp_norm: [H].
        post_attention_norm: [H], of the attention's output before it is added to the residual.
        post_mlp_norm: [H], likewise.
        q_norm: [D], of each head by itself.
        k_norm: [D].
        qkv_bias: [(Hq + 2 * Hkv) * D].
        out_bias: [H].
        gate_up_bias: [2 * I].
        down_bias: [H].
        window: keys that a token sees, itself included; 0 for all.
        rotary: index of the decoder's rotary table, -1 for none.
        name: for messages, such as "model.layers.3".
    """

    qkv: QuantizedTensor | Sequence[QuantizedTensor]
    out: QuantizedTensor
    gate_up: QuantizedTensor | Sequence[QuantizedTensor]
    down: QuantizedTensor
    input_norm: Any = None
    mlp_norm: Any = None
    post_attention_norm: Any = None
    post_mlp_norm: Any = None
    q_norm: Any = None
    k_norm: Any = None
    qkv_bias: Any = None
    out_bias: Any = None
    gate_up_bias: Any = None
    down_bias: Any = None
    window: int = 0
    rotary: int = 0
    name: str = ""

    def _fields(self, index: int) -> dict[str, Any]:
        where = f"decoder: {self.name or f'layers.{index}'}"
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("qkv", "gate_up"):
                value = _weights(value, f"{where}: {field.name}")
            elif field.name in ("out", "down"):
                value = _weight(value, f"{where}: {field.name}")
            elif field.name == "window":
                value = _checks.integer(value, f"{where}: window")
            elif field.name == "rotary":
                value = _checks.integer(value, f"{where}: rotary", bits=32)
            elif field.name == "name":
                value = _checks.text(value, f"{where}: name")
            else:
                value = optional(value, f"{where}: {field.name}")
            fields[field.name] = value
        return fields


class Decoder:
    """Runs a stack of decoder layers in one call: norms, products, rotary embedding, attention and its cache.

    It is immutable and may be used from many threads, each with caches of its own. Quantized weights are shared, not
    copied.

    Args:
        layers: the weights of each :class:`Layer`.
        hidden_size: H.
        heads: Hq.
        kv_heads: Hkv, which divides Hq.
        head_size: D.
        intermediate_size: I.
        dtype: of the residual and of every operator's result: float32, bfloat16 or float16.
        compute: what activations become inside the layers' products, as in :func:`qcore.linear`.
        head_compute: likewise for the head; ``compute`` by default.
        eps: of the norms.
        norm_offset: added to the weights of all norms: 1 for Gemma.
        round_normalized: round a normalized row to ``dtype`` before the weight multiplies it, as Llama does.
        activation: of the gate, one of :data:`ACTIVATIONS`.
        attention_scale: of the scores; 1 / sqrt(D) by default.
        attention_soft_cap: scores become cap * tanh(score / cap); 0 for none.
        input_multiplier: of the hidden states that enter.
        residual_multiplier: of what is added to the residual.
        logit_multiplier: of the logits.
        logit_soft_cap: of the logits after the multiplier; 0 for none.
        rotary: tables (cos, sin), each float32 [P, R] with a row for each position.
        rotary_layout: "halves" turns the pairs (i, i + R / 2), "interleaved" (2i, 2i + 1).
        final_norm: [H], or None.
        head: QuantizedTensor [V, H], or None for a stack without logits.
        head_bias: [V], or None.

    Raises:
        QcoreValueError, QcoreTypeError: naming the layer and the weight, what was given and what was expected.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        intermediate_size: int,
        dtype: Any = "float32",
        compute: Compute = "int8",
        head_compute: Compute | None = None,
        eps: float = 1e-6,
        norm_offset: float = 0.0,
        round_normalized: bool = False,
        activation: str = "silu",
        attention_scale: float | None = None,
        attention_soft_cap: float = 0.0,
        input_multiplier: float = 1.0,
        residual_multiplier: float = 1.0,
        logit_multiplier: float = 1.0,
        logit_soft_cap: float = 0.0,
        rotary: Sequence[tuple[Any, Any]] = (),
        rotary_layout: str = "halves",
        final_norm: Any = None,
        head: QuantizedTensor | None = None,
        head_bias: Any = None,
    ) -> None:
        where = "decoder"
        sizes = {
            "hidden_size": hidden_size,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_size": head_size,
            "intermediate_size": intermediate_size,
        }
        numbers = {
            "eps": eps,
            "norm_offset": norm_offset,
            "attention_scale": 0.0 if attention_scale is None else attention_scale,
            "attention_soft_cap": attention_soft_cap,
            "input_multiplier": input_multiplier,
            "residual_multiplier": residual_multiplier,
            "logit_multiplier": logit_multiplier,
            "logit_soft_cap": logit_soft_cap,
        }
        name = _arrays.floating_dtype(dtype, f"{where}: dtype") or "float32"
        options: dict[str, Any] = {
            **{argument: _checks.integer(value, f"{where}: {argument}") for argument, value in sizes.items()},
            **{argument: _checks.number(value, f"{where}: {argument}") for argument, value in numbers.items()},
            "dtype": _arrays.DTYPES[name],
            "compute": _checks.choice(compute, COMPUTE, f"{where}: compute"),
            "head_compute": _checks.choice(
                compute if head_compute is None else head_compute, COMPUTE, f"{where}: head_compute"
            ),
            "round_normalized": bool(round_normalized),
            "activation": _checks.choice(activation, ACTIVATIONS, f"{where}: activation"),
            "rotary_layout": _checks.choice(rotary_layout, LAYOUTS, f"{where}: rotary_layout"),
        }
        tables = _rotary_tables(rotary, f"{where}: rotary")
        layers = _sequence(layers, f"{where}: layers", "Layers")
        for index, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise _core.QcoreTypeError(f"{where}: layers[{index}] is a {type(layer).__name__}, expected a Layer")
        self._handle = _core.Decoder.make(
            options,
            [layer._fields(index) for index, layer in enumerate(layers)],
            tables,
            optional(final_norm, f"{where}: final_norm"),
            None if head is None else _weight(head, f"{where}: head"),
            optional(head_bias, f"{where}: head_bias"),
        )
        self.hidden_size = options["hidden_size"]
        self.kv_heads = options["kv_heads"]
        self.head_size = options["head_size"]
        self.dtype = name

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self._handle.layers

    @property
    def vocabulary(self) -> int:
        """V, or 0 without a head."""
        return self._handle.vocabulary

    @property
    def max_positions(self) -> int:
        """Rows of the rotary tables, 0 without any."""
        return self._handle.max_positions

    @property
    def device(self) -> str:
        """Device of the weights: "cpu", "cuda:0", ..."""
        return self._handle.device

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return self._handle.nbytes

    def caches(self, batch: int, capacity: int, dtype: Any = None, *, like: Any = None) -> Caches:
        """Make uninitialized caches for every layer.

        Args:
            batch: B.
            capacity: C, the most tokens of a sequence.
            dtype: float32, float16, bfloat16 or int8; the decoder's dtype by default.
            like: an array whose library and device the caches get; NumPy by default.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        """
        kind = self.dtype if dtype is None else dtype
        return Caches(
            [
                KeyValueCache.empty(batch, self.kv_heads, capacity, self.head_size, kind, like=like)
                for _ in range(self.layers)
            ]
        )

    def forward(
        self,
        hidden: Any,
        positions: Any,
        past: Any,
        caches: Caches | Sequence[KeyValueCache],
        *,
        first: Any = None,
        last: int | None = 1,
        result: str | None = None,
        out: Any = None,
        out_dtype: Any = None,
        max_length: int = 0,
        stream: Any = None,
    ) -> Any:
        """Run all layers over T tokens of B sequences and write their keys and values to the caches.

        A token's result depends neither on T nor on B nor on the number of threads.

        Args:
            hidden: float32, float16 or bfloat16 [B, T, H], the embeddings of the tokens; T is 1 or more.
            positions: int32 [B, T], rows of the rotary tables.
            past: int32 [B], the tokens in the caches so far: the first of these tokens goes to position past[b].
            caches: one for each layer, with room for past[b] + T tokens.
            first: int32 [B], the first position that holds a token behind padding on the left; None for zeros.
            last: the number R of last tokens of each sequence that a result is wanted for, None for all T.
            result: "logits" (the default with a head), "hidden": the final norm's result (the default without one).
            out: where to write [B, R, V] or [B, R, H]; float32, float16 or bfloat16. It is returned.
            out_dtype: dtype of the result; hidden's by default. Not together with ``out``.
            max_length: no past[b] + T is larger; 0 for the capacity. It sizes launches on CUDA.
            stream: CUDA stream to run on; the caller's library's current one by default.

        Returns:
            [B, R, V] or [B, R, H] in hidden's library.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; nothing has
                been written then.
            CudaError: a CUDA call failed.
        """
        where = "decoder"
        if not isinstance(caches, Caches):
            caches = Caches(caches)
        kind = ("logits" if self.vocabulary else "hidden") if result is None else result
        logits = _checks.choice(kind, {"logits": True, "hidden": False}, f"{where}: result")
        source_backend = _arrays.backend_of(hidden, f"{where}: hidden")
        source = source_backend.readable(hidden, f"{where}: hidden")
        address = (
            source_backend.stream(hidden)
            if stream is None
            else _arrays.stream_address(stream, source_backend, hidden, f"{where}: stream")
        )
        dtype = None if out_dtype is None else _arrays.floating_dtype(out_dtype, f"{where}: out_dtype")
        shape = tuple(_arrays.shape_of(hidden, f"{where}: hidden"))
        if len(shape) != 3 or shape[1] == 0:
            raise _core.QcoreValueError(
                f"{where}: hidden has shape {list(shape)}, expected [B, T, {self.hidden_size}] with at least one token"
            )
        made = out
        if out is None:
            batch, tokens, _ = shape
            rows = tokens if last is None else _checks.integer(last, f"{where}: last")
            if not 1 <= rows <= tokens:
                raise _core.QcoreValueError(f"{where}: last is {last!r}, expected 1 to {tokens}, or None for all")
            columns = self.vocabulary if logits else self.hidden_size
            made = source_backend.empty(hidden, (batch, rows, columns), dtype, f"{where}: hidden")
        elif dtype is not None:
            raise _core.QcoreValueError(f"{where}: out and out_dtype are both given, expected at most one of them")
        target = writable(made, f"{where}: out")
        self._handle.forward(
            source,
            _arrays.readable(positions, f"{where}: positions"),
            _arrays.readable(past, f"{where}: past"),
            None if first is None else _arrays.readable(first, f"{where}: first"),
            caches._handle,
            None if logits else target,
            target if logits else None,
            _checks.integer(max_length, f"{where}: max_length"),
            address,
        )
        return made if out is not None else source_backend.result(made, hidden)


def _rotary_tables(tables: Any, where: str) -> list[tuple[Any, Any]]:
    found = []
    for index, table in enumerate(_sequence(tables, where, "tables (cos, sin)")):
        try:
            cos, sin = table
        except (TypeError, ValueError):
            raise _core.QcoreTypeError(
                f"{where}[{index}] is a {type(table).__name__}, expected two arrays: (cos, sin)"
            ) from None
        found.append(
            (_arrays.readable(cos, f"{where}[{index}] cos"), _arrays.readable(sin, f"{where}[{index}] sin")),
        )
    return found


def _sequence(values: Any, where: str, expected: str) -> list[Any]:
    if not isinstance(values, Iterable):
        raise _core.QcoreTypeError(f"{where} is a {type(values).__name__}, expected a sequence of {expected}")
    return list(values)


def _weights(weights: Any, where: str) -> list[_core.QuantizedTensor]:
    if not isinstance(weights, (list, tuple)):
        return [_weight(weights, where)]
    if not weights:
        raise _core.QcoreValueError(f"{where} is an empty sequence, expected at least one QuantizedTensor")
    return [_weight(weight, f"{where}[{index}]") for index, weight in enumerate(weights)]


def _weight(weight: Any, where: str) -> _core.QuantizedTensor:
    if not isinstance(weight, QuantizedTensor):
        raise _core.QcoreTypeError(f"{where} is a {type(weight).__name__}, expected a QuantizedTensor")
    return weight._handle
