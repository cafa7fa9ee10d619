"""The C99 of exported layers that all cells share, without their numbers.

``@`` stands for the exported name, ``@@`` for it in capitals. Nothing relies on what C leaves to the implementation:
negative numbers are not shifted, and no sum leaves its type (the library proves that when it puts parameters together).
"""

from __future__ import annotations

# No magnitude has the highest bit of its type, so that half of a divisor can be added to it.
SHIFT = {
    "half_away": """
/* v * 2^-n, halves away from zero. */
static inline @_wide @_shift(@_wide v, int n) {
  @_magnitude magnitude = (@_magnitude)(v < 0 ? -v : v);
  if (n <= 0) return v * ((@_wide)1 << -n);
  magnitude = (magnitude + ((@_magnitude)1 << (n - 1))) >> n;
  return v < 0 ? -(@_wide)magnitude : (@_wide)magnitude;
}
""",
    "half_even": """
/* v * 2^-n, halves to even. */
static inline @_wide @_shift(@_wide v, int n) {
  const @_magnitude magnitude = (@_magnitude)(v < 0 ? -v : v);
  @_magnitude whole, rest, half;
  if (n <= 0) return v * ((@_wide)1 << -n);
  whole = magnitude >> n;
  rest = magnitude - (whole << n);
  half = (@_magnitude)1 << (n - 1);
  whole += rest > half || (rest == half && whole % 2 == 1);
  return v < 0 ? -(@_wide)whole : (@_wide)whole;
}
""",
}

CLAMP = """
static inline @_wide @_clamp(@_wide v, @_range range) {
  v = v < range.lo ? range.lo : v;
  return v > range.hi ? range.hi : v;
}
"""

# Cortex-M55 and M85 have vectors of 16 bytes (MVE), and instructions that add all products of two vectors to a sum.
# Cortex-M4, M7, M33 and others have instructions that add two products of 16 bits (DSP). % is what DSP needs.
VECTORS = """
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)
#include <arm_mve.h>
#define @@_LOOP inline%
#else
#define @@_LOOP inline
#endif
"""

DSP = """
#elif defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP
#include <arm_acle.h>

/* Inlined, the loops would have too few registers. */
#define @@_LOOP __attribute__((noinline))

typedef struct __attribute__((packed, may_alias)) {
  int32_t bits;
} @_word;

/* Four bytes from any address. */
static inline int32_t @_load(const void *from) { return ((const @_word *)from)->bits; }"""

# By the types of weights, of codes and of their sums: what four or two codes become, and what a row does with them.
# Other products have no loop for DSP instructions. # is the number of a row.
_DSP_LOOPS = {
    ("int8_t", "int8_t", "int32_t"): (
        4,
        [
            "const int32_t c = @_load(codes + k), even = __sxtb16(c), odd = __sxtb16((int32_t)((uint32_t)c >> 8));",
            "int32_t w;",
        ],
        [
            "w = @_load(w# + k);",
            "s# = __smlad(__sxtb16(w), even, s#);",
            "s# = __smlad(__sxtb16((int32_t)((uint32_t)w >> 8)), odd, s#);",
        ],
    ),
    ("int16_t", "int16_t", "int32_t"): (
        2,
        ["const int32_t c = @_load(codes + k);"],
        ["s# = __smlad(@_load(w# + k), c, s#);"],
    ),
    ("int16_t", "int16_t", "int64_t"): (
        2,
        ["const int32_t c = @_load(codes + k);"],
        ["s# = __smlald(@_load(w# + k), c, s#);"],
    ),
}

_LOADS = {"int8_t": "vldrbq", "int16_t": "vldrhq"}


def uses_dsp(product: tuple[str, str, str]) -> bool:
    """Return whether a product has a loop for DSP instructions, by the types of weights, codes and sums."""
    return product in _DSP_LOOPS


def multiply(product: tuple[str, str, str], code: str, rows: int) -> str:
    """Return the function that multiplies rows of weights by codes: ``@_add_row_of_x`` for one row.

    Args:
        product: types of weights, codes and sums.
        code: what the codes are called: "x", "h", "m" or "rrh".
        rows: number of gates that are multiplied at a time; 1 for a projection, too.
    """
    apart = "a row of each gate; the rows of gates are `stride` weights apart" if rows > 1 else "a row of weights"
    lines = [
        "",
        f"/* Adds products of codes and {apart}. */",
        *_opening(code, rows),
        "  int k = 0;",
        "#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)",
        *_mve_loops(product, rows),
    ]
    if uses_dsp(product):
        step, before, each = _DSP_LOOPS[product]
        lines += [
            "#elif defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP",
            f"  for (; k + {step} <= features; k += {step}) {{",
        ]
        lines += [f"    {line}" for line in [*before, *_per_row(each, rows)]] + ["  }"]
    lines += ["#endif", "  for (; k < features; ++k) {", f"    const @_sum_{code} c = codes[k];"]
    lines += [f"    {line}" for line in _per_row(["s# += w#[k] * c;"], rows)] + ["  }"]
    return "\n".join([*lines, *(f"  sums[{row}] = s{row};" for row in range(rows)), "}", ""])


def _opening(code: str, rows: int) -> list[str]:
    pointers = ", ".join(f"*w{row} = w{row - 1} + stride" if row else "*w0 = weights" for row in range(rows))
    name, stride = ("add_products", "int32_t stride, ") if rows > 1 else ("add_row", "")
    return [
        f"static @@_LOOP void @_{name}_of_{code}(const @_weight *weights, {stride}const @_{code} *codes,",
        "                                     int features, @_wide *sums) {",
        f"  const @_weight {pointers};",
        f"  @_sum_{code} " + ", ".join(f"s{row} = (@_sum_{code})sums[{row}]" for row in range(rows)) + ";",
    ]


def _per_row(lines: list[str], rows: int) -> list[str]:
    return [line.replace("#", str(row)) for row in range(rows) for line in lines]


def _mve_loops(product: tuple[str, str, str], rows: int) -> list[str]:
    """Return loops over whole vectors and over the rest, which is loaded with zeros behind it."""
    weight, code, total = product
    bits = 8 if product == ("int8_t", "int8_t", "int32_t") else 16
    lanes, kind, add = 128 // bits, f"s{bits}", "vmladavaq" if total == "int32_t" else "vmlaldavaq"
    vector = f"const int{bits}x{lanes}_t c ="
    whole = [
        f"{vector} {_LOADS[code]}_{kind}(codes + k);",
        *_per_row([f"s# = {add}_{kind}(s#, {_LOADS[weight]}_{kind}(w# + k), c);"], rows),
    ]
    rest = [
        f"const mve_pred16_t rest = vctp{bits}q((uint32_t)(features - k));",
        f"{vector} {_LOADS[code]}_z_{kind}(codes + k, rest);",
        *_per_row([f"s# = {add}_{kind}(s#, {_LOADS[weight]}_z_{kind}(w# + k, rest), c);"], rows),
        "k = features;",
    ]
    return [
        f"  for (; k + {lanes} <= features; k += {lanes}) {{",
        *(f"    {line}" for line in whole),
        "  }",
        "  if (k < features) {",
        *(f"    {line}" for line in rest),
        "  }",
    ]


# For packed weights, which stand for 16 times as much here: the lower one of a byte is shifted into the upper half,
# where its sign is the byte's. # is the number of a row.
_PACKED_MVE = (
    [
        "const mve_pred16_t lower = vctp8q((uint32_t)half), upper = vctp8q((uint32_t)rest);",
        "const int8x16_t c = vldrbq_z_s8(codes, lower), d = vldrbq_z_s8(codes + half, upper);",
        "const int8x16_t mask = vdupq_n_s8(-16);",
        "int8x16_t w;",
    ],
    [
        "w = vldrbq_z_s8((const int8_t *)w#, lower);",
        "s# = vmladavaq_s8(s#, vshlq_n_s8(w, 4), c);",
        "s# = vmladavaq_s8(s#, vandq_s8(w, mask), d);",
    ],
)
_PACKED_DSP = (
    [
        "const int32_t c = @_load(codes + i), even = __sxtb16(c), odd = __sxtb16((int32_t)((uint32_t)c >> 8));",
        "const int32_t d = @_load(codes + half + i), even_d = __sxtb16(d);",
        "const int32_t odd_d = __sxtb16((int32_t)((uint32_t)d >> 8));",
        "uint32_t w, lower, upper;",
    ],
    [
        "w = (uint32_t)@_load(w# + i);",
        "lower = w << 4 & 0xf0f0f0f0u;",
        "upper = w & 0xf0f0f0f0u;",
        "s# = __smlad(__sxtb16((int32_t)lower), even, s#);",
        "s# = __smlad(__sxtb16((int32_t)(lower >> 8)), odd, s#);",
        "s# = __smlad(__sxtb16((int32_t)upper), even_d, s#);",
        "s# = __smlad(__sxtb16((int32_t)(upper >> 8)), odd_d, s#);",
    ],
)

_GROUP = 32
"""Weights whose 16 bytes are packed together; what is left at the end of a row is packed likewise."""


def packed_row(codes: list[int]) -> list[int]:
    """Return the bytes of a row of weights of 4 bits: byte i of a group has its weights i and i + half."""
    row = []
    for first in range(0, len(codes), _GROUP):
        group = [code & 15 for code in codes[first : first + _GROUP]]
        half = (len(group) + 1) // 2
        row += [low | high << 4 for low, high in zip(group[:half], [*group[half:], 0], strict=False)]
    return row


def multiply_packed(code: str, rows: int) -> str:
    """Return the function of :func:`multiply` for weights of 4 bits, codes of 8 bits and sums of 32 bits.

    Args:
        code: what the codes are called: "x", "h", "m" or "rrh".
        rows: number of gates that are multiplied at a time; 1 for a projection, too.
    """
    before, each = _PACKED_MVE
    apart = "a row of each gate; the rows of gates are `stride` bytes apart" if rows > 1 else "a row of weights"
    lines = [
        "",
        f"/* Adds products of codes and {apart}. 32 codes meet",
        "   16 bytes, byte i of which has the weights of codes i and i + 16, the codes that are left likewise. */",
        *_opening(code, rows),
        "  int left;",
        *(f"  s{row} *= 16;" for row in range(rows)),
        f"  for (left = features; left > 0; left -= {_GROUP}) {{",
        f"    const int group = left < {_GROUP} ? left : {_GROUP}, half = (group + 1) / 2, rest = group - half;",
        "    int i = 0;",
        "#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)",
        *(f"    {line}" for line in [*before, *_per_row(each, rows), "i = half;"]),
        "#elif defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP",
        "    for (; i + 4 <= rest; i += 4) {",
    ]
    before, each = _PACKED_DSP
    plain = ["s# += (((w#[i] & 15) ^ 8) - 8) * c + (((w#[i] >> 4) ^ 8) - 8) * d;"]
    lines += [f"      {line}" for line in [*before, *_per_row(each, rows)]] + ["    }", "#endif"]
    lines += [
        "    for (; i < half; ++i) {",
        "      const int32_t c = 16 * codes[i], d = i < rest ? 16 * codes[half + i] : 0;",
    ]
    lines += [f"      {line}" for line in _per_row(plain, rows)] + ["    }", "    codes += group;"]
    lines += [f"    {line}" for line in _per_row(["w# += half;"], rows)] + ["  }"]
    return "\n".join([*lines, *(f"  sums[{row}] = s{row} / 16;" for row in range(rows)), "}", ""])


# $ is what the table gives, % its argument.
LOOK_UP = """
static inline @_wide @_look_up_$(const @_layer *layer, @_wide argument) {
  return layer->$_table[argument - layer->%.lo];
}
"""

# The straight line of src/numerics/interp_table.h; lengths are powers of two, and so is the number of segments. # is
# the search of the segment, a line for each step of it.
_INTERPOLATE = """
static inline @_wide @_look_up_$(const @_layer *layer, @_wide argument) {
  const int32_t code = (int32_t)(argument - layer->%.lo);
  const uint16_t *starts = layer->$_starts;
  int32_t first, start, length;
  int low;
#  low = (int)(starts - layer->$_starts);
  first = layer->$_values[low];
  start = *starts;
  length = (low + 1 < @@_SEGMENTS ? starts[1] : layer->%.hi - layer->%.lo + 1) - start;
  return first + ((layer->$_values[low + 1] - first) * (code - start) + length / 2) / length;
}
"""


def interpolate(segments: int) -> str:
    """Return the look-up in a table of so many segments."""
    steps = [1 << bit for bit in reversed(range((segments - 1).bit_length()))]
    return _INTERPOLATE.replace("#", "".join(f"  if (starts[{step}] <= code) starts += {step};\n" for step in steps))


# $ starts other states than h, % computes a channel of the step; & is h, or m where a projection follows.
# #NEXT# is NEXT or PROJECT.
STEP = """
/* The state before the first step: zeros. */
static inline void @_start(@_state *state) {
  int layer, j;
  for (layer = 0; layer < @@_LAYERS; ++layer) {
    for (j = 0; j < @@_OUTPUT_SIZE; ++j) state->h[layer][j] = (@_h)@_layers[layer].h_zero;
$  }
}

/* One step of all layers: x[@@_INPUT_SIZE] in, y[@@_OUTPUT_SIZE] out, which is the last layer's h. */
static inline void @_step(@_state *state, const @_x *x, @_h *y) {
  const int32_t stride = (int32_t)@@_HIDDEN_SIZE * @@_ROW_OF_H;
  @_& next[@@_HIDDEN_SIZE];
  @_wide of_x[@@_GATES], of_h[@@_GATES];
  int32_t wx[@@_GATES], rh[@@_GATES];
  int layer, gate, j;
  for (layer = 0; layer < @@_LAYERS; ++layer) {
    const @_layer *l = &@_layers[layer];
    const @_h *h = state->h[layer];
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      for (gate = 0; gate < @@_GATES; ++gate) {
        const int32_t row = (int32_t)gate * @@_HIDDEN_SIZE + j;
        of_x[gate] = layer == 0 ? @_wx_offsets_0[row] : l->wx_offsets[row];
        of_h[gate] = l->rh_offsets[row];
      }
      if (layer == 0) {
        const int32_t stride_of_x = (int32_t)@@_HIDDEN_SIZE * @@_ROW_OF_X;
        @_add_products_of_x(l->w + (int32_t)j * @@_ROW_OF_X, stride_of_x, x, @@_INPUT_SIZE, of_x);
      } else {
        @_add_products_of_h(l->w + (int32_t)j * @@_ROW_OF_H, stride, state->h[layer - 1], @@_OUTPUT_SIZE, of_x);
      }
      @_add_products_of_h(l->r + (int32_t)j * @@_ROW_OF_H, stride, h, @@_OUTPUT_SIZE, of_h);
      for (gate = 0; gate < @@_GATES; ++gate) {
        const int32_t row = (int32_t)gate * @@_HIDDEN_SIZE + j;
        wx[gate] = (int32_t)@_clamp(@_shift(of_x[gate], l->wx_shifts[row]), l->wx);
        rh[gate] = (int32_t)@_clamp(@_shift(of_h[gate], l->rh_shifts[row]), l->rh);
      }
      next[j] = (@_&)(% + l->&_zero);
    }
#NEXT#  }
  for (j = 0; j < @@_OUTPUT_SIZE; ++j) y[j] = state->h[@@_LAYERS - 1][j];
}
"""

NEXT = """    for (j = 0; j < @@_HIDDEN_SIZE; ++j) state->h[layer][j] = next[j];
"""

PROJECT = """    for (j = 0; j < @@_OUTPUT_SIZE; ++j) {
      @_wide of_m = l->projection_offsets[j];
      @_add_row_of_m(l->projection + (int32_t)j * @@_ROW_OF_M, next, @@_HIDDEN_SIZE, &of_m);
      state->h[layer][j] = (@_h)(@_clamp(@_shift(of_m, l->projection_shifts[j]), l->h) + l->h_zero);
    }
"""

# A cell in two halves: the first makes a code of each channel, $, which the last gate's rows of R multiply then.
HALVES = """
/* The state before the first step: zeros. */
static inline void @_start(@_state *state) {
  int layer, j;
  for (layer = 0; layer < @@_LAYERS; ++layer)
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) state->h[layer][j] = (@_h)@_layers[layer].h_zero;
}

/* W x of channel j: of the last gate, or of the gates before it. */
static inline void @_of_x(const @_state *state, const @_x *x, int layer, int j, int last, int32_t *wx) {
  const @_layer *l = &@_layers[layer];
  const int first = last ? @@_GATES - 1 : 0, gates = last ? 1 : @@_GATES - 1;
  const int32_t stride = (int32_t)@@_HIDDEN_SIZE * (layer == 0 ? @@_ROW_OF_X : @@_ROW_OF_H);
  const @_weight *w = l->w + first * stride + (int32_t)j * (layer == 0 ? @@_ROW_OF_X : @@_ROW_OF_H);
  @_wide sums[@@_GATES - 1];
  int gate;
  for (gate = 0; gate < gates; ++gate) {
    const int32_t row = (int32_t)(first + gate) * @@_HIDDEN_SIZE + j;
    sums[gate] = layer == 0 ? @_wx_offsets_0[row] : l->wx_offsets[row];
  }
  if (layer == 0) {
    if (last) @_add_row_of_x(w, x, @@_INPUT_SIZE, sums);
    else @_add_products_of_x(w, stride, x, @@_INPUT_SIZE, sums);
  } else {
    if (last) @_add_row_of_h(w, state->h[layer - 1], @@_HIDDEN_SIZE, sums);
    else @_add_products_of_h(w, stride, state->h[layer - 1], @@_HIDDEN_SIZE, sums);
  }
  for (gate = 0; gate < gates; ++gate) {
    const int32_t row = (int32_t)(first + gate) * @@_HIDDEN_SIZE + j;
    wx[gate] = (int32_t)@_clamp(@_shift(sums[gate], l->wx_shifts[row]), l->wx);
  }
}

/* One step of all layers: x[@@_INPUT_SIZE] in, y[@@_OUTPUT_SIZE] out, which is the last layer's h. */
static inline void @_step(@_state *state, const @_x *x, @_h *y) {
  const int32_t stride = (int32_t)@@_HIDDEN_SIZE * @@_ROW_OF_H;
  @_h next[@@_HIDDEN_SIZE];
  @_$ $[@@_HIDDEN_SIZE];
  uint16_t update[@@_HIDDEN_SIZE];
  @_wide of_h[@@_GATES - 1];
  int32_t wx[@@_GATES - 1], rh[@@_GATES - 1];
  int layer, gate, j;
  for (layer = 0; layer < @@_LAYERS; ++layer) {
    const @_layer *l = &@_layers[layer];
    const @_h *h = state->h[layer];
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      @_of_x(state, x, layer, j, 0, wx);
      for (gate = 0; gate < @@_GATES - 1; ++gate) of_h[gate] = l->rh_offsets[(int32_t)gate * @@_HIDDEN_SIZE + j];
      @_add_products_of_h(l->r + (int32_t)j * @@_ROW_OF_H, stride, h, @@_HIDDEN_SIZE, of_h);
      for (gate = 0; gate < @@_GATES - 1; ++gate)
        rh[gate] = (int32_t)@_clamp(@_shift(of_h[gate], l->rh_shifts[(int32_t)gate * @@_HIDDEN_SIZE + j]), l->rh);
      update[j] = (uint16_t)@_update(l, wx, rh, j);
      $[j] = (@_$)(@_reset(l, wx, rh, j, h[j] - l->h_zero) + l->$_zero);
    }
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      const int32_t row = (@@_GATES - 1) * (int32_t)@@_HIDDEN_SIZE + j;
      @_of_x(state, x, layer, j, 1, wx);
      of_h[0] = l->rh_offsets[row];
      @_add_row_of_$(l->r + row * @@_ROW_OF_H, $, @@_HIDDEN_SIZE, of_h);
      rh[0] = (int32_t)@_clamp(@_shift(of_h[0], l->rh_shifts[row]), l->rh);
      next[j] = (@_h)(@_cell(l, update[j], wx[0], rh[0], j, h[j] - l->h_zero) + l->h_zero);
    }
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) state->h[layer][j] = next[j];
  }
  for (j = 0; j < @@_HIDDEN_SIZE; ++j) y[j] = state->h[@@_LAYERS - 1][j];
}
"""

SELF_TEST = """
int main(void) {
  int row, t, j;
  for (row = 0; row < ROWS; ++row) {
    @_state state;
    @_start(&state);
    for (t = 0; t < STEPS; ++t) {
      @_h y[@@_OUTPUT_SIZE];
      @_step(&state, inputs[row][t], y);
      for (j = 0; j < @@_OUTPUT_SIZE; ++j)
        if (y[j] != outputs[row][t][j]) {
          printf("@: differs first at step %d, row %d, channel %d: got %d, expected %d\\n", t, row, j, (int)y[j],
                 (int)outputs[row][t][j]);
          return 1;
        }
    }
  }
  printf("@: %d rows of %d steps, %d outputs equal\\n", ROWS, STEPS, ROWS * STEPS * @@_OUTPUT_SIZE);
  return 0;
}
"""
