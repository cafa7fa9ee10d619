"""The C99 of exported GRUs, without their numbers: what src/numerics/gru_cell.h does, operation by operation.

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
/* to[n] = rows of weights times codes, at the scale of what they are part of. */
static inline void @_multiply_$(const @_weight *weights, const @_sum_$ *offsets, const int8_t *shifts, int features,
                                const @_$ *codes, @_range range, int32_t *to) {
  int n, k;
  for (n = 0; n < 3 * @@_HIDDEN_SIZE; ++n) {
    @_sum_$ sum = offsets[n];
    for (k = 0; k < features; ++k) sum += (@_sum_$)weights[k] * codes[k];
    weights += features;
    to[n] = (int32_t)@_clamp(@_shift(sum, shifts[n]), range);
  }
}
"""

# $ is z, r or g.
LOOK_UP = """
static inline int64_t @_look_up_$(const @_layer *layer, int64_t pre) {
  return layer->$_table[pre - layer->$_pre.lo];
}
"""

# The straight line of src/numerics/interp_table.h; lengths are powers of two.
INTERPOLATE = """
static inline int64_t @_look_up_$(const @_layer *layer, int64_t pre) {
  const int32_t code = (int32_t)(pre - layer->$_pre.lo);
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
  length = (low + 1 < @@_SEGMENTS ? layer->$_starts[low + 1] : layer->$_pre.hi - layer->$_pre.lo + 1) - start;
  return first + ((layer->$_values[low + 1] - first) * (code - start) + length / 2) / length;
}
"""

STAGED = """
/* wx, rh and the state are codes less their zero points, as everything here. */
static inline int64_t @_cell(const @_layer *l, const int32_t *wx, const int32_t *rh, int j, int64_t h) {
  const int size = @@_HIDDEN_SIZE;
  const @_bias *bias = l->biases + j;
  int64_t z, r, g, rb, rrh, kept, fresh;
  z = @_shift(wx[j], l->wx_to_z) + @_shift(rh[j], l->rh_to_z) + bias[0];
  z = @_look_up_z(l, @_clamp(z, l->z_pre));
  r = @_shift(wx[size + j], l->wx_to_r) + @_shift(rh[size + j], l->rh_to_r) + bias[size];
  r = @_look_up_r(l, @_clamp(r, l->r_pre));
  rb = @_clamp(@_shift(rh[2 * size + j], l->rh_to_rb) + bias[3 * size], l->rb);
  rrh = @_clamp(@_shift(r * rb, l->r_rb_to_rrh), l->rrh);
  g = @_shift(wx[2 * size + j], l->wx_to_g) + @_shift(rrh, l->rrh_to_g) + bias[2 * size];
  g = @_look_up_g(l, @_clamp(g, l->g_pre));
  kept = @_clamp(@_shift(z * h, l->z_h_to_old), l->old_part);
  fresh = @_clamp(@_shift((l->one - z) * g, l->z_g_to_new), l->new_part);
  return @_clamp(@_shift(kept, l->old_to_h) + @_shift(fresh, l->new_to_h), l->h);
}
"""

FUSED = """
/* wx, rh (biases are part of them) and the state are codes less their zero points, as everything here. */
static inline int64_t @_cell(const @_layer *l, const int32_t *wx, const int32_t *rh, int j, int64_t h) {
  const int size = @@_HIDDEN_SIZE;
  int64_t z, r, g;
  z = @_shift(wx[j], l->wx_to_z) + @_shift(rh[j], l->rh_to_z);
  z = @_look_up_z(l, @_clamp(z, l->z_pre));
  r = @_shift(wx[size + j], l->wx_to_r) + @_shift(rh[size + j], l->rh_to_r);
  r = @_look_up_r(l, @_clamp(r, l->r_pre));
  g = @_shift(wx[2 * size + j], l->wx_to_g) + @_shift(r * rh[2 * size + j], l->r_rh_to_g);
  g = @_look_up_g(l, @_clamp(g, l->g_pre));
  return @_clamp(@_shift(z * h + (l->one - z) * @_shift(g, l->g_to_h), l->z_bits), l->h);
}
"""

STEP = """
/* The state before the first step: zeros. */
static inline void @_start(@_state *state) {
  int layer, j;
  for (layer = 0; layer < @@_LAYERS; ++layer)
    for (j = 0; j < @@_HIDDEN_SIZE; ++j) state->h[layer][j] = (@_h)@_layers[layer].h_zero;
}

/* One step of all layers: x[@@_INPUT_SIZE] in, y[@@_HIDDEN_SIZE] out, which is the last layer's state. */
static inline void @_step(@_state *state, const @_x *x, @_h *y) {
  int32_t wx[3 * @@_HIDDEN_SIZE], rh[3 * @@_HIDDEN_SIZE];
  int layer, j;
  for (layer = 0; layer < @@_LAYERS; ++layer) {
    const @_layer *l = &@_layers[layer];
    @_h *h = state->h[layer];
    if (layer == 0) {
      @_multiply_x(l->w, @_wx_offsets_0, l->wx_shifts, @@_INPUT_SIZE, x, l->wx, wx);
    } else {
      @_multiply_h(l->w, l->wx_offsets, l->wx_shifts, @@_HIDDEN_SIZE, state->h[layer - 1], l->wx, wx);
    }
    @_multiply_h(l->r, l->rh_offsets, l->rh_shifts, @@_HIDDEN_SIZE, h, l->rh, rh);
    for (j = 0; j < @@_HIDDEN_SIZE; ++j)
      h[j] = (@_h)(@_cell(l, wx, rh, j, h[j] - l->h_zero) + l->h_zero);
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
