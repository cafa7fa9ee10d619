import enum
from typing import Any

__version__: str

class QcoreError(Exception): ...
class QcoreValueError(QcoreError, ValueError): ...
class QcoreTypeError(QcoreError, TypeError): ...
class CudaError(QcoreError, RuntimeError): ...

class DType(enum.Enum):
    f32 = 0
    f16 = 1
    bf16 = 2
    i8 = 3
    u8 = 4
    i32 = 5
    i16 = 6
    i64 = 7

class ComputeMode(enum.Enum):
    floating = 0
    int8 = 1
    int8_asym = 2
    int16 = 3
    int8_token = 4

class ActivationKind(enum.Enum):
    none = 0
    clamp = 1
    silu = 2
    gelu = 3
    tanh = 4
    sigmoid = 5
    gelu_tanh = 6

class Method(enum.Enum):
    rtn = 0
    mse = 1
    awq = 2

class ParameterType(enum.Enum):
    none = 0
    f32 = 1
    f16 = 2
    bf16 = 3
    e8m0 = 4
    e4m3 = 5
    u4 = 6
    u6 = 7
    u8 = 8
    z4 = 9
    z8 = 10

class LutReduction(enum.Enum):
    none = 0
    exp = 1
    log = 2
    reciprocal = 3
    sqrt = 4
    rsqrt = 5
    periodic = 6

class GateActivation(enum.Enum):
    silu = 0
    gelu = 1
    gelu_tanh = 2
    relu = 3

class RotaryLayout(enum.Enum):
    halves = 0
    interleaved = 1

class GruPipeline(enum.Enum):
    staged = 0
    fused = 1

class ShiftRounding(enum.Enum):
    half_away = 0
    half_even = 1

class GruTableKind(enum.Enum):
    exact = 0
    interp = 1

class ConvParams:
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    def __init__(
        self, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...], groups: int
    ) -> None: ...

class WeightEncoding:
    bits: int
    zero: int
    codebook: tuple[int, ...] | None
    scales: ParameterType
    offsets: ParameterType
    scale_zero: int
    super_block: int
    tensor_scale: float
    def check(self, where: str) -> None: ...
    def __init__(
        self,
        bits: int,
        zero: int,
        codebook: list[int] | None,
        scales: ParameterType,
        offsets: ParameterType,
        scale_zero: int,
        super_block: int,
        tensor_scale: float,
    ) -> None: ...

class KernelInfo:
    op: str
    name: str
    device: str
    available: bool
    needs: str
    runs: int

class ForceKernel:
    def __init__(self, op: str, name: str) -> None: ...

class QuantizedTensor:
    shape: tuple[int, ...]
    rows: int
    blocks: int
    bits: int
    block_size: int
    symmetric: bool
    device: str
    scale_dtype: str
    offset_dtype: str
    nbytes: int
    bits_per_weight: float
    encoding: WeightEncoding | None
    def encoded_parts(self, codes: Any, scales: Any, offsets: Any, super_scales: Any, super_offsets: Any) -> None: ...
    def plain(self) -> QuantizedTensor: ...
    def codes(self, out: Any) -> None: ...
    def nibbles(self, out: Any) -> None: ...
    def scales(self, out: Any) -> None: ...
    def offsets(self, out: Any) -> None: ...
    def dequantize(self, out: Any) -> None: ...
    def storage(self) -> Any: ...
    def slice_rows(self, begin: int, end: int) -> QuantizedTensor: ...
    def to(self, cuda: bool, index: int) -> QuantizedTensor: ...
    def equal(self, other: QuantizedTensor) -> bool: ...

class CancelToken:
    def __init__(self) -> None: ...
    def cancel(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

def set_leak_warnings(enabled: bool) -> None: ...
def kernels(op: str) -> list[KernelInfo]: ...
def last_kernel(op: str) -> str: ...
def cpu_features() -> list[str]: ...
def get_num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def use_openmp_threads(parallel: int, thread_number: int, max_threads: int) -> None: ...
def available_cpus() -> int: ...
def uses_openmp_threads() -> bool: ...
def cuda_info() -> dict[str, Any]: ...
def probe_read(buffer: Any, offset: int, bytes: int, streams: int) -> int: ...
def probe_int8_dots(rounds: int) -> int: ...
def probe_float_fmas(rounds: int) -> int: ...
def empty_array(shape: list[int], dtype: DType) -> Any: ...
def line_offset(buffer: Any) -> int: ...
def as_bfloat16(words: Any, op: str, argument: str) -> Any: ...
def from_parts(codes: Any, scales: Any, offsets: Any, bits: int, block_size: int) -> QuantizedTensor: ...
def from_nibbles(nibbles: Any, shape: list[int], scales: Any, offsets: Any, block_size: int) -> QuantizedTensor: ...
def from_storage(
    storage: Any,
    shape: list[int],
    bits: int,
    block_size: int,
    symmetric: bool,
    half_scales: bool,
    half_offsets: bool,
    keep: bool,
    encoding: WeightEncoding | None = None,
) -> QuantizedTensor: ...
def from_encoded(
    encoding: WeightEncoding,
    codes: Any,
    scales: Any,
    offsets: Any,
    super_scales: Any,
    super_offsets: Any,
    block_size: int,
) -> QuantizedTensor: ...
def concatenate(weights: list[QuantizedTensor]) -> QuantizedTensor: ...
def quantize(
    weight: Any, bits: int, block_size: int, symmetric: bool, method: Method, half_scales: bool, importance: Any
) -> QuantizedTensor: ...
def quantize_encoded(
    weight: Any, encoding: WeightEncoding, block_size: int, method: Method, importance: Any
) -> QuantizedTensor: ...
def hadamard(x: Any, block: int, out: Any) -> None: ...
def gptq_columns(weights: Any, factor: Any, scales: Any, offsets: Any, blocks: Any, codes: Any, bits: int) -> None: ...
def check_quantized_activations(parts: tuple[Any, Any, Any, int, ComputeMode], op: str, argument: str) -> None: ...
def quantize_activations(x: Any, y: tuple[Any, Any, Any, int, ComputeMode], scale: float, stream: int) -> None: ...
def linear(
    x: Any,
    weight: QuantizedTensor,
    bias: Any,
    out: Any,
    compute: ComputeMode,
    x_scale: float,
    activation: ActivationKind,
    lo: float,
    hi: float,
    stream: int,
) -> None: ...
def linear_of_codes(
    x: tuple[Any, Any, Any, int, ComputeMode],
    weight: QuantizedTensor,
    bias: Any,
    out: Any,
    activation: ActivationKind,
    lo: float,
    hi: float,
    stream: int,
) -> None: ...
def grouped_linear(
    x: Any,
    weight: QuantizedTensor,
    row_counts: Any,
    bias: Any,
    out: Any,
    compute: ComputeMode,
    x_scale: float,
    activation: ActivationKind,
    lo: float,
    hi: float,
    stream: int,
) -> None: ...
def grouped_linear_of_codes(
    x: tuple[Any, Any, Any, int, ComputeMode],
    weight: QuantizedTensor,
    row_counts: Any,
    bias: Any,
    out: Any,
    activation: ActivationKind,
    lo: float,
    hi: float,
    stream: int,
) -> None: ...
def embedding(indices: Any, weight: QuantizedTensor, out: Any, stream: int) -> None: ...
def awq_dequantize(qweight: Any, scales: Any, qzeros: Any, transpose: bool, out: Any, stream: int) -> None: ...
def conv2d_shape(x: Any, weight: QuantizedTensor, params: ConvParams) -> tuple[int, int, int, int]: ...
def conv2d(
    x: Any,
    weight: QuantizedTensor,
    bias: Any,
    out: Any,
    params: ConvParams,
    compute: ComputeMode,
    activation: ActivationKind,
    lo: float,
    hi: float,
    stream: int,
) -> None: ...

class StaticConv2d:
    device: str
    def __init__(
        self,
        weight: Any,
        w_scale: Any,
        bias: Any,
        params: ConvParams,
        x: tuple[DType, float, int],
        y: tuple[DType, float, int],
        w_zero_point: int,
        lo: int,
        hi: int,
    ) -> None: ...
    def shape(self, x: Any) -> tuple[int, int, int, int]: ...
    def run(self, x: Any, out: Any, stream: int) -> None: ...
    def to(self, cuda: bool, index: int) -> StaticConv2d: ...

class StaticLinear:
    device: str
    rows: int
    def __init__(
        self,
        weight: Any,
        w_scale: Any,
        bias: Any,
        x: tuple[DType, float, int],
        y: tuple[DType, float, int],
        w_zero_point: int,
        lo: int,
        hi: int,
    ) -> None: ...
    def run(self, x: Any, out: Any, stream: int) -> None: ...
    def to(self, cuda: bool, index: int) -> StaticLinear: ...

def awq_linear(x: Any, qweight: Any, scales: Any, qzeros: Any, bias: Any, out: Any, stream: int) -> None: ...
def awq_pack(qweight: Any, scales: Any, qzeros: Any, stream: int) -> QuantizedTensor: ...

class LutTable:
    intervals: int
    segments: int
    entries: int
    reduction: LutReduction
    value_dtype: str
    @staticmethod
    def from_parts(cuts: Any, values: Any, reduction: LutReduction) -> LutTable: ...
    @staticmethod
    def builtin(name: str, range_reduction: bool) -> LutTable: ...
    def cuts(self, out: Any) -> None: ...
    def values(self, out: Any) -> None: ...
    def equal(self, other: LutTable) -> bool: ...

def builtin_luts() -> list[tuple[str, bool]]: ...
def lut(x: Any, table: LutTable, out: Any, stream: int) -> None: ...
def softmax(x: Any, axis: int, out: Any, stream: int) -> None: ...
def rms_norm(x: Any, weight: Any, eps: float, out: Any, stream: int) -> None: ...
def fit_lut_cuts(
    x: Any,
    f: Any,
    weight: Any,
    candidates: Any,
    required: Any,
    intervals: int,
    segments: int,
    half_values: bool,
    largest: bool,
    fixed_ends: bool,
    coarse: int,
    window: int,
    progress: Any,
) -> tuple[list[float], float, float, bool, int, int, int]: ...
def fit_lut_values(
    x: Any,
    f: Any,
    weight: Any,
    cuts: Any,
    knots: Any,
    pinned: Any,
    intervals: int,
    segments: int,
    half_values: bool,
    largest: bool,
    values: Any,
    progress: Any,
) -> float: ...
def decoder_rms_norm(
    x: Any, weight: Any, out: Any, residual: Any, eps: float, offset: float, round_normalized: bool, stream: int
) -> None: ...
def decoder_rms_norm_quantize(
    x: Any,
    weight: Any,
    y: tuple[Any, Any, Any, int, ComputeMode],
    residual: Any,
    eps: float,
    offset: float,
    round_normalized: bool,
    scale: float,
    stream: int,
) -> None: ...
def decoder_gated_activation_quantize(
    x: Any, y: tuple[Any, Any, Any, int, ComputeMode], activation: GateActivation, scale: float, stream: int
) -> None: ...
def decoder_rotary_embedding(
    x: Any, positions: Any, cos: Any, sin: Any, out: Any, layout: RotaryLayout, stream: int
) -> None: ...
def decoder_gated_activation(x: Any, out: Any, activation: GateActivation, stream: int) -> None: ...
def decoder_soft_cap(x: Any, out: Any, multiplier: float, cap: float, stream: int) -> None: ...
def decoder_write_cache(keys: Any, values: Any, past: Any, cache: tuple[Any, Any, Any, Any], stream: int) -> None: ...
def decoder_attention(
    q: Any,
    cache: tuple[Any, Any, Any, Any],
    past: Any,
    first: Any,
    out: Any,
    scale: float,
    window: int,
    soft_cap: float,
    max_length: int,
    stream: int,
) -> None: ...

class DecoderCaches:
    def __init__(self, caches: list[tuple[Any, Any, Any, Any]]) -> None: ...

class Decoder:
    layers: int
    vocabulary: int
    max_positions: int
    device: str
    nbytes: int
    @staticmethod
    def make(
        options: dict[str, Any],
        layers: list[dict[str, Any]],
        rotary: list[tuple[Any, Any]],
        final_norm: Any,
        head: QuantizedTensor | None,
        head_bias: Any,
    ) -> Decoder: ...
    def forward(
        self,
        hidden: Any,
        positions: Any,
        past: Any,
        first: Any,
        caches: DecoderCaches,
        normed: Any,
        logits: Any,
        max_length: int,
        stream: int,
    ) -> None: ...

class QuantizedGru:
    @staticmethod
    def make(
        input_size: int,
        hidden_size: int,
        pipeline: GruPipeline,
        rounding: ShiftRounding,
        tables: GruTableKind,
        formats: Any,
        weight_bits: int,
        bias_bits: int,
        w: Any,
        r: Any,
        bx: Any,
        br: Any,
        w_exponents: Any,
        r_exponents: Any,
        bx_exponents: Any,
        br_exponents: Any,
        linear_before_reset: bool,
    ) -> QuantizedGru: ...
    def table(self, gate: int) -> list[int]: ...
    def knots(self, gate: int) -> tuple[list[int], list[int]]: ...
    def run(self, x: Any, h0: Any, y: Any, last: Any, reverse: bool, lengths: Any, gates: Any, stream: int) -> None: ...
    def trace(self, x: Any, h0: Any, reverse: bool, trace: Any) -> None: ...

class GruStack:
    @staticmethod
    def make(cells: list[QuantizedGru], directions: int, reverse: bool = False) -> GruStack: ...
    def run(
        self, x: Any, h0: Any, y: Any, last: Any, batch_first: bool, lengths: Any, gates: Any, stream: int
    ) -> None: ...

class QuantizedLstm:
    @staticmethod
    def make(
        input_size: int,
        hidden_size: int,
        rounding: ShiftRounding,
        tables: GruTableKind,
        formats: Any,
        weight_bits: int,
        bias_bits: int,
        w: Any,
        r: Any,
        b: Any,
        w_exponents: Any,
        r_exponents: Any,
        b_exponents: Any,
        projection_size: int,
        projection: Any,
        projection_exponents: Any,
        peepholes: Any,
        peephole_exponents: Any,
    ) -> QuantizedLstm: ...
    def table(self, index: int) -> list[int]: ...
    def knots(self, index: int) -> tuple[list[int], list[int]]: ...
    def run(
        self,
        x: Any,
        h0: Any,
        c0: Any,
        y: Any,
        h_last: Any,
        c_last: Any,
        reverse: bool,
        lengths: Any,
        stream: int = 0,
    ) -> None: ...
    def trace(self, x: Any, h0: Any, c0: Any, reverse: bool, trace: Any) -> None: ...

class LstmStack:
    @staticmethod
    def make(cells: list[QuantizedLstm], directions: int, reverse: bool = False) -> LstmStack: ...
    def run(
        self,
        x: Any,
        h0: Any,
        c0: Any,
        y: Any,
        h_last: Any,
        c_last: Any,
        batch_first: bool,
        lengths: Any,
        stream: int = 0,
    ) -> None: ...

def quantize_fixed(x: Any, format: tuple[int, bool, int, int], codes: Any, stream: int = 0) -> None: ...
def dequantize_fixed(codes: Any, format: tuple[int, bool, int, int], x: Any, stream: int = 0) -> None: ...
