"""The C99 of exported layers that all cells share, without their numbers.

``@`` stands for the exported name, ``@@`` for it in capitals. Nothing relies on what C leaves to the implementation:
negative numbers are not shifted, and no sum leaves its type (the library proves that when it puts parameters together).
"""

from __future__ import annotations

SHIFT = {
    "half_away": """
/* v * 2^-n, halves away from zero. */
static inline int64_t @_shift(int64_t v, int n) {
  int64_t magnitude = v < 0 ? -v : v;
  if (n <= 0) return v * ((int64_t)1 << -n);
  magnitude = (magnitude + ((int64_t)1 << (n - 1))) >> n;
  return v < 0 ? -magnitude : magnitude;
}
""",
    "half_even": """
/* v * 2^-n, halves to even. */
static inline int64_t @_shift(int64_t v, int n) {
  const int64_t magnitude = v < 0 ? -v : v;
  int64_t whole, rest, half;
  if (n <= 0) return v * ((int64_t)1 << -n);
  whole = magnitude >> n;
  rest = magnitude - (whole << n);
  half = (int64_t)1 << (n - 1);
  whole += rest > half || (rest == half && whole % 2 == 1);
  return v < 0 ? -whole : whole;
}
""",
}

CLAMP = """
static inline int64_t @_clamp(int64_t v, @_range range) {
  v = v < range.lo ? range.lo : v;
  return v > range.hi ? range.hi : v;
}
"""

# Cortex-M4, M7, M33 and others have instructions that add two products of 16 bits to a sum.
DSP = """
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP
#include <arm_acle.h>

/* Inlined, the loops would have too few registers. */
#define @@_LOOP __attribute__((noinline))

typedef struct __attribute__((packed, may_alias)) {
  int32_t bits;
} @_word;

/* Four bytes from any address. */
static inline int32_t @_load(const void *from) { return ((const @_word *)from)->bits; }
#else
#define @@_LOOP inline
#endif
"""

PLAIN = "\n#define @@_LOOP inline\n"

# $ is x, h or m. By the bits of weights and of codes, and of their sums; other products have no loop of their own.
DSP_LOOPS = {
    ("int8_t", "int8_t", "int32_t"): """
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP
  for (; k + 4 <= features; k += 4) {
    const int32_t w = @_load(weights + k), c = @_load(codes + k);
    sum = __smlad(__sxtb16(w), __sxtb16(c), sum);
    sum = __smlad(__sxtb16((int32_t)((uint32_t)w >> 8)), __sxtb16((int32_t)((uint32_t)c >> 8)), sum);
  }
#endif""",
    ("int16_t", "int16_t", "int32_t"): """
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP
  for (; k + 2 <= features; k += 2) sum = __smlad(@_load(weights + k), @_load(codes + k), sum);
#endif""",
    ("int16_t", "int16_t", "int64_t"): """
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP
  for (; k + 2 <= features; k += 2) sum = __smlald(@_load(weights + k), @_load(codes + k), sum);
#endif""",
}

# $ is x, h or m: types of codes and of sums differ. % is the loop for DSP instructions.
MULTIPLY = """
/* A row of weights times codes, and a sum before. */
static @@_LOOP @_sum_$ @_sum_of_$(const @_weight *weights, const @_$ *codes, int features, @_sum_$ sum) {
  int k = 0;%
  for (; k < features; ++k) sum += (@_sum_$)weights[k] * codes[k];
  return sum;
}
"""

# $ is what the table gives, % its argument.
LOOK_UP = """
static inline int64_t @_look_up_$(const @_layer *layer, int64_t argument) {
  return layer->$_table[argument - layer->%.lo];
}
"""

# The straight line of src/numerics/interp_table.h; lengths are powers of two.
INTERPOLATE = """
static inline int64_t @_look_up_$(const @_layer *layer, int64_t argument) {
  const int32_t code = (int32_t)(argument - layer->%.lo);
  int low = 0, high = @@_SEGMENTS;
  int32_t first, start, length;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (layer->$_starts[middle] <= code) {
      low = middle;
    } else {
      high = middle;
    }
  }
  first = layer->$_values[low];
  start = layer->$_starts[low];
  length = (low + 1 < @@_SEGMENTS ? layer->$_starts[low + 1] : layer->%.hi - layer->%.lo + 1) - start;
  return first + ((layer->$_values[low + 1] - first) * (code - start) + length / 2) / length;
}
"""

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
  @_& next[@@_HIDDEN_SIZE];
  int32_t wx[@@_GATES], rh[@@_GATES];
  int layer, gate, j;
  for (layer = 0; layer < @@_LAYERS; ++layer) {
    const @_layer *l = &@_layers[layer];
    const @_h *h = state->h[layer];
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      for (gate = 0; gate < @@_GATES; ++gate) {
        const int32_t row = (int32_t)gate * @@_HIDDEN_SIZE + j;
        int64_t of_x, of_h;
        if (layer == 0) {
          of_x = @_sum_of_x(l->w + row * @@_INPUT_SIZE, x, @@_INPUT_SIZE, @_wx_offsets_0[row]);
        } else {
          of_x = @_sum_of_h(l->w + row * @@_OUTPUT_SIZE, state->h[layer - 1], @@_OUTPUT_SIZE, l->wx_offsets[row]);
        }
        of_h = @_sum_of_h(l->r + row * @@_OUTPUT_SIZE, h, @@_OUTPUT_SIZE, l->rh_offsets[row]);
        wx[gate] = (int32_t)@_clamp(@_shift(of_x, l->wx_shifts[row]), l->wx);
        rh[gate] = (int32_t)@_clamp(@_shift(of_h, l->rh_shifts[row]), l->rh);
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
      const int64_t of_m = @_sum_of_m(l->projection + (int32_t)j * @@_HIDDEN_SIZE, next, @@_HIDDEN_SIZE,
                                      l->projection_offsets[j]);
      state->h[layer][j] = (@_h)(@_clamp(@_shift(of_m, l->projection_shifts[j]), l->h) + l->h_zero);
    }
"""

# A cell in two halves: codes of the first half's channels, $, are multiplied in the second.
HALVES = """
/* The state before the first step: zeros. */
static inline void @_start(@_state *state) {
  int layer, j;
  for (layer = 0; layer < @@_LAYERS; ++layer)
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) state->h[layer][j] = (@_h)@_layers[layer].h_zero;
}

/* W x of a row of weights. */
static inline int32_t @_of_x(const @_state *state, const @_x *x, int layer, int32_t row) {
  const @_layer *l = &@_layers[layer];
  int64_t sum;
  if (layer == 0) {
    sum = @_sum_of_x(l->w + row * @@_INPUT_SIZE, x, @@_INPUT_SIZE, @_wx_offsets_0[row]);
  } else {
    sum = @_sum_of_h(l->w + row * @@_HIDDEN_SIZE, state->h[layer - 1], @@_HIDDEN_SIZE, l->wx_offsets[row]);
  }
  return (int32_t)@_clamp(@_shift(sum, l->wx_shifts[row]), l->wx);
}

/* One step of all layers: x[@@_INPUT_SIZE] in, y[@@_OUTPUT_SIZE] out, which is the last layer's h. */
static inline void @_step(@_state *state, const @_x *x, @_h *y) {
  @_h next[@@_HIDDEN_SIZE];
  @_$ $[@@_HIDDEN_SIZE];
  uint16_t update[@@_HIDDEN_SIZE];
  int layer, j;
  for (layer = 0; layer < @@_LAYERS; ++layer) {
    const @_layer *l = &@_layers[layer];
    const @_h *h = state->h[layer];
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      int32_t wx[2], rh[2];
      int gate;
      for (gate = 0; gate < 2; ++gate) {
        const int32_t row = (int32_t)gate * @@_HIDDEN_SIZE + j;
        const int64_t sum = @_sum_of_h(l->r + row * @@_HIDDEN_SIZE, h, @@_HIDDEN_SIZE, l->rh_offsets[row]);
        wx[gate] = @_of_x(state, x, layer, row);
        rh[gate] = (int32_t)@_clamp(@_shift(sum, l->rh_shifts[row]), l->rh);
      }
      update[j] = (uint16_t)@_update(l, wx, rh, j);
      $[j] = (@_$)(@_reset(l, wx, rh, j, h[j] - l->h_zero) + l->$_zero);
    }
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      const int32_t row = 2 * (int32_t)@@_HIDDEN_SIZE + j;
      const int64_t sum = @_sum_of_$(l->r + row * @@_HIDDEN_SIZE, $, @@_HIDDEN_SIZE, l->rh_offsets[row]);
      const int64_t rh = @_clamp(@_shift(sum, l->rh_shifts[row]), l->rh);
      next[j] = (@_h)(@_cell(l, update[j], @_of_x(state, x, layer, row), rh, j, h[j] - l->h_zero) + l->h_zero);
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
