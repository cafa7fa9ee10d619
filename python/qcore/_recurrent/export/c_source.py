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

# $ is x or h: types of codes and of sums differ.
MULTIPLY = """
/* A row of weights times codes, at the scale of what it is part of. */
static inline int32_t @_multiply_$(const @_weight *weights, @_sum_$ sum, int shift, int features, const @_$ *codes,
                                   @_range range) {
  int k;
  for (k = 0; k < features; ++k) sum += (@_sum_$)weights[k] * codes[k];
  return (int32_t)@_clamp(@_shift(sum, shift), range);
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

# $ is what starts a channel of other states than h, % what computes a channel of the step.
STEP = """
/* The state before the first step: zeros. */
static inline void @_start(@_state *state) {
  int layer, j;
  for (layer = 0; layer < @@_LAYERS; ++layer)
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      state->h[layer][j] = (@_h)@_layers[layer].h_zero;$
    }
}

/* One step of all layers: x[@@_INPUT_SIZE] in, y[@@_HIDDEN_SIZE] out, which is the last layer's h. */
static inline void @_step(@_state *state, const @_x *x, @_h *y) {
  @_h next[@@_HIDDEN_SIZE];
  int32_t wx[@@_GATES], rh[@@_GATES];
  int layer, gate, j;
  for (layer = 0; layer < @@_LAYERS; ++layer) {
    const @_layer *l = &@_layers[layer];
    const @_h *h = state->h[layer];
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) {
      for (gate = 0; gate < @@_GATES; ++gate) {
        const int32_t row = (int32_t)gate * @@_HIDDEN_SIZE + j;
        if (layer == 0) {
          wx[gate] = @_multiply_x(l->w + row * @@_INPUT_SIZE, @_wx_offsets_0[row], l->wx_shifts[row], @@_INPUT_SIZE, x,
                                  l->wx);
        } else {
          wx[gate] = @_multiply_h(l->w + row * @@_HIDDEN_SIZE, l->wx_offsets[row], l->wx_shifts[row],
                                  @@_HIDDEN_SIZE, state->h[layer - 1], l->wx);
        }
        rh[gate] = @_multiply_h(l->r + row * @@_HIDDEN_SIZE, l->rh_offsets[row], l->rh_shifts[row], @@_HIDDEN_SIZE, h,
                                l->rh);
      }
      next[j] = (@_h)(% + l->h_zero);
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
      @_h y[@@_HIDDEN_SIZE];
      @_step(&state, inputs[row][t], y);
      for (j = 0; j < @@_HIDDEN_SIZE; ++j)
        if (y[j] != outputs[row][t][j]) {
          printf("@: differs first at step %d, row %d, channel %d: got %d, expected %d\\n", t, row, j, (int)y[j],
                 (int)outputs[row][t][j]);
          return 1;
        }
    }
  }
  printf("@: %d rows of %d steps, %d outputs equal\\n", ROWS, STEPS, ROWS * STEPS * @@_HIDDEN_SIZE);
  return 0;
}
"""
