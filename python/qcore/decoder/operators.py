"""The operators between the matrix products of a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore import _arrays, _checks, _core
from qcore._options import IntegerCompute
from qcore.decoder.cache import KeyValueCache, cache_arrays, writable
from qcore.quantized_activations import QuantizedActivations, finished, new_activations, scale_number

ACTIVATIONS = {name: getattr(_core.GateActivation, name) for name in ("silu", "gelu", "gelu_tanh", "relu")}
"""Names of the activations of a gate; "gelu" is the form with erf."""

LAYOUTS = {name: getattr(_core.RotaryLayout, name) for name in ("halves", "interleaved")}
"""Names of the pairs of elements that a rotary embedding turns."""


def optional(array: Any, where: str) -> Any:
    """Return an array as the core reads it, or None."""
    return None if array is None else _arrays.readable(array, where)


def _call(
    op: str,
    x: Any,
    out: Any,
    out_dtype: Any,
    stream: Any,
    run: Callable[[Any, Any, int], None],
    argument: str = "x",
    halved: bool = False,
) -> Any:
    """Call run(x, out, stream) as the core takes them; returns out or a new array like x, with half its last axis."""
    backend = _arrays.backend_of(x, f"{op}: {argument}")
    source = backend.readable(x, f"{op}: {argument}")
    address = backend.stream(x) if stream is None else _arrays.stream_address(stream, backend, x, f"{op}: stream")
    dtype = None if out_dtype is None else _arrays.floating_dtype(out_dtype, f"{op}: out_dtype")
    if out is not None:
        if dtype is not None:
            raise _core.QcoreValueError(f"{op}: out and out_dtype are both given, expected at most one of them")
        run(source, writable(out, f"{op}: out"), address)
        return out
    shape = tuple(_arrays.shape_of(x, f"{op}: {argument}"))
    made = backend.empty(x, _halved(shape) if halved else shape, dtype, f"{op}: {argument}")
    run(source, backend.writable(made, f"{op}: out"), address)
    return backend.result(made, x)


def _halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // 2) if shape else ()


def rms_norm(
    x: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    residual: Any = None,
    round_normalized: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Return ``x / sqrt(mean(x * x) + eps) * (weight + offset)`` along the last axis.

    Unlike :func:`qcore.lut.rms_norm` it uses plain arithmetic and no table.

    Args:
        x: float32, float16 or bfloat16 [..., H], any strides, CPU or CUDA.
        weight: floating-point [H], or None for ones.
        eps: 0 to 1e30.
        offset: added to every weight: 1 for Gemma.
        residual: like x, changed in place: x is added to it first, and its norm is the result.
        round_normalized: round the normalized row to the result's dtype before the weight multiplies it.
        out: where to write [..., H]; x itself, or an array without memory in common with x.
        out_dtype: float32, float16 or bfloat16; x's dtype by default. Not together with ``out``.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        ``out``, or a new array in x's library.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    op = "rms_norm"
    epsilon, added = _checks.number(eps, f"{op}: eps"), _checks.number(offset, f"{op}: offset")
    weights = optional(weight, f"{op}: weight")
    target = None if residual is None else writable(residual, f"{op}: residual")
    return _call(
        op,
        x,
        out,
        out_dtype,
        stream,
        lambda source, to, at: _core.decoder_rms_norm(
            source, weights, to, target, epsilon, added, bool(round_normalized), at
        ),
    )


def rms_norm_quantize(
    x: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    block_size: int | None = None,
    compute: IntegerCompute = "int8",
    scale: float | None = None,
    offset: float = 0.0,
    residual: Any = None,
    round_normalized: bool = False,
    stream: Any = None,
) -> QuantizedActivations:
    """Return :func:`rms_norm` as codes, for :func:`qcore.linear` of one or several weights.

    The bits are those of ``qcore.quantize_activations(rms_norm(x, ...), block_size, compute, scale=scale)``. On CUDA it
    is one launch for "int8" in blocks of 8, 16, 32, 64, 128 or 256, or one per row, of aligned rows.

    Args:
        x: float32, float16 or bfloat16 [..., H], any strides, CPU or CUDA.
        weight: floating-point [H], or None for ones.
        eps: 0 to 1e30.
        block_size: consecutive elements that share a scale; None for one per row.
        compute: "int8", "int8_asym" or "int16".
        scale: for "int8": the scale of every block; None: each block's own.
        offset: added to every weight: 1 for Gemma.
        residual: like x, changed in place: x is added to it first, and its norm is the result.
        round_normalized: round the normalized row to x's dtype before the weight multiplies it.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        Codes [..., H] in x's library.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    op = "rms_norm_quantize"
    epsilon, added = _checks.number(eps, f"{op}: eps"), _checks.number(offset, f"{op}: offset")
    weights = optional(weight, f"{op}: weight")
    target = None if residual is None else writable(residual, f"{op}: residual")
    number = scale_number(scale, f"{op}: scale")
    backend = _arrays.backend_of(x, f"{op}: x")
    source = backend.readable(x, f"{op}: x")
    made, y = new_activations(x, tuple(_arrays.shape_of(x, f"{op}: x")), block_size, compute, op)
    address = _arrays.stream_address(stream, backend, x, f"{op}: stream")
    _core.decoder_rms_norm_quantize(source, weights, y, target, epsilon, added, bool(round_normalized), number, address)
    return finished(made, x, op)


def rotary_embedding(
    x: Any,
    positions: Any,
    cos: Any,
    sin: Any,
    *,
    layout: str = "halves",
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Return x with the first R elements of each head rotated by the angles of its token's position.

    Args:
        x: float32, float16 or bfloat16 [B, T, heads, D], any strides, CPU or CUDA.
        positions: int32 [B, T], rows of cos and sin.
        cos: float32 [P, R], R even and at most D.
        sin: float32 [P, R].
        layout: "halves" turns the pairs (i, i + R / 2), as transformers' ``rotate_half``; "interleaved" (2i, 2i + 1).
        out: where to write; x itself, or an array without memory in common with x.
        out_dtype: float32, float16 or bfloat16; x's dtype by default. Not together with ``out``.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        ``out``, or a new array in x's library.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.

    Source: Su and others, RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864.
    """
    op = "rotary_embedding"
    number = _checks.choice(layout, LAYOUTS, f"{op}: layout")
    places = _arrays.readable(positions, f"{op}: positions")
    tables = _arrays.readable(cos, f"{op}: cos"), _arrays.readable(sin, f"{op}: sin")
    return _call(
        op,
        x,
        out,
        out_dtype,
        stream,
        lambda source, to, at: _core.decoder_rotary_embedding(source, places, *tables, to, number, at),
    )


def gated_activation(
    x: Any, activation: str = "silu", *, out: Any = None, out_dtype: Any = None, stream: Any = None
) -> Any:
    """Return ``activation(x[..., :I]) * x[..., I:]`` for x [..., 2 * I].

    Args:
        x: float32, float16 or bfloat16, any strides, CPU or CUDA.
        activation: "silu", "gelu" (with erf), "gelu_tanh" or "relu".
        out: where to write [..., I], without memory in common with x.
        out_dtype: float32, float16 or bfloat16; x's dtype by default. Not together with ``out``.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        ``out``, or a new array in x's library.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    op = "gated_activation"
    number = _checks.choice(activation, ACTIVATIONS, f"{op}: activation")
    return _call(
        op,
        x,
        out,
        out_dtype,
        stream,
        lambda source, to, at: _core.decoder_gated_activation(source, to, number, at),
        halved=True,
    )


def gated_activation_quantize(
    x: Any,
    activation: str = "silu",
    *,
    block_size: int | None = None,
    compute: IntegerCompute = "int8",
    scale: float | None = None,
    stream: Any = None,
) -> QuantizedActivations:
    """Return :func:`gated_activation` as codes, for :func:`qcore.linear`.

    The bits are those of ``qcore.quantize_activations(gated_activation(x, activation), block_size, compute,
    scale=scale)``. On CUDA it is one launch for "int8" in blocks of 8, 16, 32, 64, 128 or 256, or one per row, of
    aligned rows; two for rows of more than 4096 elements with one scale each, if they are too few to occupy the device.

    Args:
        x: float32, float16 or bfloat16 [..., 2 * I], any strides, CPU or CUDA: the gate, then what it multiplies.
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        block_size: consecutive elements of the result that share a scale; None for one per row.
        compute: "int8", "int8_asym" or "int16".
        scale: for "int8": the scale of every block; None: each block's own.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        Codes [..., I] in x's library.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    op = "gated_activation_quantize"
    kind = _checks.choice(activation, ACTIVATIONS, f"{op}: activation")
    number = scale_number(scale, f"{op}: scale")
    backend = _arrays.backend_of(x, f"{op}: x")
    source = backend.readable(x, f"{op}: x")
    shape = _halved(tuple(_arrays.shape_of(x, f"{op}: x")))
    made, y = new_activations(x, shape, block_size, compute, op)
    address = _arrays.stream_address(stream, backend, x, f"{op}: stream")
    _core.decoder_gated_activation_quantize(source, y, kind, number, address)
    return finished(made, x, op)


def soft_cap(
    x: Any, cap: float, *, multiplier: float = 1.0, out: Any = None, out_dtype: Any = None, stream: Any = None
) -> Any:
    """Return ``cap * tanh(x * multiplier / cap)``, or ``x * multiplier`` for a cap of 0.

    Args:
        x: float32, float16 or bfloat16 [..., N], any strides, CPU or CUDA.
        cap: 0 or a positive number.
        multiplier: of x.
        out: where to write; x itself, or an array without memory in common with x.
        out_dtype: float32, float16 or bfloat16; x's dtype by default. Not together with ``out``.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        ``out``, or a new array in x's library.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    op = "soft_cap"
    bound, factor = _checks.number(cap, f"{op}: cap"), _checks.number(multiplier, f"{op}: multiplier")
    return _call(
        op,
        x,
        out,
        out_dtype,
        stream,
        lambda source, to, at: _core.decoder_soft_cap(source, to, factor, bound, at),
    )


def write_cache(keys: Any, values: Any, past: Any, cache: KeyValueCache, *, stream: Any = None) -> None:
    """Write the keys and values of T tokens to the positions past[b], ..., past[b] + T - 1 of a cache.

    In an int8 cache the scale of a head is its largest magnitude / 127; a head with a NaN or an infinity gets the scale
    NaN.

    Args:
        keys: float32, float16 or bfloat16 [B, T, Hkv, D], any strides, CPU or CUDA.
        values: like keys.
        past: int32 [B], the tokens in the cache so far.
        cache: where to write, with room for past[b] + T tokens.
        stream: CUDA stream; the caller's library's current one by default.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    op = "write_cache"
    backend = _arrays.backend_of(keys, f"{op}: keys")
    address = backend.stream(keys) if stream is None else _arrays.stream_address(stream, backend, keys, f"{op}: stream")
    _core.decoder_write_cache(
        backend.readable(keys, f"{op}: keys"),
        _arrays.readable(values, f"{op}: values"),
        _arrays.readable(past, f"{op}: past"),
        cache_arrays(cache, op),
        address,
    )


def attention(
    q: Any,
    cache: KeyValueCache,
    past: Any,
    *,
    first: Any = None,
    scale: float | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    max_length: int = 0,
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
) -> Any:
    """Return the causal attention of T tokens at the positions past[b] + t over a cache that holds these tokens too.

    Query head h uses the key head h // (Hq // Hkv). A result does not depend on T.

    Args:
        q: float32, float16 or bfloat16 [B, T, Hq, D], any strides, CPU or CUDA; Hq a multiple of the cache's Hkv.
        cache: keys and values; those that a token sees are expected to be finite.
        past: int32 [B], the tokens in the cache before these.
        first: int32 [B], the first position that holds a token behind padding on the left; None for zeros. A token
            before it sees no keys, and its result is 0.
        scale: of the scores; 1 / sqrt(D) by default.
        window: keys that a token sees, itself included; 0 for all.
        soft_cap: scores become cap * tanh(score / cap); 0 for none.
        max_length: no past[b] + T is larger; 0 for the capacity. It sizes launches on CUDA.
        out: where to write [B, T, Hq, D], without memory in common with q and the cache.
        out_dtype: float32, float16 or bfloat16; q's dtype by default. Not together with ``out``.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        ``out``, or a new array in q's library.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    op = "attention"
    shape = tuple(_arrays.shape_of(q, f"{op}: q"))
    default = (shape[-1] or 1) ** -0.5 if shape else 1.0
    factor = default if scale is None else _checks.number(scale, f"{op}: scale")
    keys = _checks.integer(window, f"{op}: window")
    cap = _checks.number(soft_cap, f"{op}: soft_cap")
    longest = _checks.integer(max_length, f"{op}: max_length")
    lengths, starts = _arrays.readable(past, f"{op}: past"), optional(first, f"{op}: first")
    arrays = cache_arrays(cache, op)
    return _call(
        op,
        q,
        out,
        out_dtype,
        stream,
        lambda source, to, at: _core.decoder_attention(
            source, arrays, lengths, starts, to, factor, keys, cap, longest, at
        ),
        "q",
    )
