#include <algorithm>

#include "gru/cpu/gru_packed.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

LaneWidth prove_widths(const GruStorage& gru, numerics::GruCell& c) {
  const GruFormats& f = gru.parameters.formats;
  const std::int64_t z = std::max<std::int64_t>(f.z.highest(), -f.z.lowest()),
                     r = std::max<std::int64_t>(f.r.highest(), -f.r.lowest()),
                     g = std::max<std::int64_t>(f.g.highest(), -f.g.lowest()), rest = c.one + z;
  Widths widths;
  widths.fits(rest);
  widths.shift(reach(c.wx), c.wx_to_z);
  widths.shift(reach(c.rh), c.rh_to_z);
  widths.shift(reach(c.wx), c.wx_to_r);
  widths.shift(reach(c.rh), c.rh_to_r);
  widths.shift(reach(c.wx), c.wx_to_g);
  const bool resets = !gru.parameters.linear_before_reset;
  if (resets) widths.shift_product(r * reach(c.h), c.r_h_to_rrh);
  if (gru.parameters.pipeline == GruPipeline::staged) {
    widths.shift(reach(c.rh), c.rh_to_rb);
    if (resets) {
      widths.shift(reach(c.rb), c.rb_to_g);
    } else {
      widths.shift_product(r * reach(c.rb), c.r_rb_to_rrh);
      widths.shift(reach(c.rrh), c.rrh_to_g);
    }
    widths.shift_product(z * reach(c.h), c.z_h_to_old);
    widths.shift_product(rest * g, c.z_g_to_new);
    widths.shift(reach(c.old_part), c.old_to_h);
    widths.shift(reach(c.new_part), c.new_to_h);
    for (const auto& biases : gru.biases)
      for (const std::int64_t bias : biases) widths.fits(std::abs(bias));
  } else {
    if (resets)
      widths.shift(reach(c.rh), c.rh_to_g);
    else
      widths.shift_product(r * reach(c.rh), c.r_rh_to_g);
    const std::int64_t candidate = widths.shift(g, c.g_to_h);
    widths.shift_product(z * reach(c.h) + rest * candidate, c.z_bits);
  }
  return widths.found();
}

template <class T>
std::vector<T> rows_from(const std::vector<T>& all, std::int64_t first) {
  return {all.begin() + first, all.end()};
}

PreparedProduct rows_from(const PreparedProduct& all, std::int64_t first) {
  return {rows_from(all.offsets, first), rows_from(all.shifts, first), all.largest};
}

}  // namespace

std::shared_ptr<const GruPacked> pack_gru(const GruStorage& gru) {
  const GruParameters& p = gru.parameters;
  const GruFormats& f = p.formats;
  if (std::max(p.input_size, p.hidden_size) > kMaxFeatures) return nullptr;
  auto packed = std::make_shared<GruPacked>();
  GruLayer& layer = packed->layer;
  layer = {};
  const std::int64_t size = layer.size = p.hidden_size;
  layer.gates = kGruGates;
  layer.groups = ceil_div(p.hidden_size, kChannelGroup);
  layer.staged = p.pipeline == GruPipeline::staged;
  layer.half_even = p.rounding == ShiftRounding::half_even;
  layer.x = gru.x_format;
  layer.h = gru.h_format;
  layer.rb_zero = layer.staged ? f.rb.zero_point : f.rh.zero_point;
  layer.input =
      pack_product({size, kGruGates, p.weight_bits, p.w, p.input_size, f.x, gru.wx, gru.cell.wx}, packed->input);
  layer.has_second = !p.linear_before_reset;
  layer.second_size = size;
  const auto pack_state = [&](int gates, const std::vector<std::int16_t>& codes, const FixedFormat& input,
                              const PreparedProduct& prepared, PackedProduct& memory) {
    return pack_product({size, gates, p.weight_bits, codes, size, input, prepared, gru.cell.rh}, memory);
  };
  if (layer.has_second) {
    layer.state = pack_state(1, p.r, f.h, gru.rh, packed->state);
    layer.reset_gate = pack_state(1, rows_from(p.r, size * size), f.h, rows_from(gru.rh, size), packed->reset_gate);
    layer.second = pack_state(1, gru.reset_weights, f.rrh, gru.reset, packed->second);
  } else {
    layer.state = pack_state(kGruGates, p.r, f.h, gru.rh, packed->state);
  }
  layer.reset_zero = f.rrh.zero_point;
  layer.cell = layer.scalar_cell = gru.cell;
  layer.width = prove_widths(gru, layer.cell);
  if (layer.has_second && layer.width == LaneWidth::scalar) return nullptr;  // the reference has such formats
  const FixedFormat* gates[] = {&f.z, &f.r, &f.g};
  for (int gate = 0; gate < kGruGates; ++gate) {
    layer.tables[gate] = pack_table(gru.tables[gate], *gates[gate], packed->tables[gate]);
    layer.scalar_tables[gate] = gru.tables[gate].data();
  }
  for (int i = 0; i < 4; ++i) {
    packed->biases[i].assign(layer.groups * kChannelGroup, 0);
    if (layer.width != LaneWidth::scalar)
      std::transform(gru.biases[i].begin(), gru.biases[i].end(), packed->biases[i].begin(),
                     [](std::int64_t bias) { return static_cast<std::int32_t>(bias); });
    layer.biases[i] = packed->biases[i].data();
    layer.scalar_biases[i] = gru.biases[i].data();
  }
  return packed;
}

}  // namespace qcore
