#include <algorithm>

#include "lstm/cpu/packed.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

LaneWidth prove_widths(const LstmParameters& p, numerics::LstmCell& cell) {
  const LstmFormats& f = p.formats;
  Widths widths;
  for (int gate = 0; gate < kLstmGates; ++gate) {
    widths.shift(reach(cell.wx), cell.wx_to_pre[gate]);
    widths.shift(reach(cell.rh), cell.rh_to_pre[gate]);
  }
  for (int i = 0; cell.peepholes && i < kLstmPeepholes; ++i)
    widths.shift_product(peephole_reach(p, i) * reach(f.c), cell.p_c_to_pre[i]);
  widths.shift_sum(reach(f.f) * reach(f.c), cell.f_c_left, reach(f.i) * reach(f.g), cell.i_g_left, cell.sum_to_c);
  widths.shift_product(reach(f.o) * reach(f.c_tanh), cell.o_c_tanh_to_m);
  return widths.found();
}

}  // namespace

std::shared_ptr<const LstmPacked> pack_lstm(const LstmStorage& lstm) {
  const LstmParameters& p = lstm.parameters;
  const LstmFormats& f = p.formats;
  if (std::max({p.input_size, p.hidden_size, p.projection_size}) > kMaxFeatures) return nullptr;
  auto packed = std::make_shared<LstmPacked>();
  LstmLayer& layer = packed->layer;
  layer = {};
  const std::int64_t size = layer.size = p.hidden_size;
  layer.gates = kLstmGates;
  layer.groups = ceil_div(size, kChannelGroup);
  layer.half_even = p.rounding == ShiftRounding::half_even;
  layer.has_cell = true;
  layer.x = lstm.x_format;
  layer.h = lstm.h_format;
  layer.cell_state = lstm.c_format;
  layer.input =
      pack_product({size, kLstmGates, p.weight_bits, p.w, p.input_size, f.x, lstm.wx, lstm.cell.wx}, packed->input);
  layer.state =
      pack_product({size, kLstmGates, p.weight_bits, p.r, p.state_size(), f.h, lstm.rh, lstm.cell.rh}, packed->state);
  layer.has_second = p.projection_size > 0;
  layer.second_size = p.projection_size;
  layer.m_zero = f.m.zero_point;
  if (layer.has_second)
    layer.second = pack_product(
        {p.projection_size, 1, p.weight_bits, p.projection, size, f.m, lstm.projection, range_of(f.h)}, packed->second);
  layer.cell = layer.scalar_cell = lstm.cell;
  layer.width = prove_widths(p, layer.cell);
  for (int i = 0; layer.cell.peepholes && i < kLstmPeepholes; ++i) {
    packed->peepholes[i].assign(layer.groups * kChannelGroup, 0);
    std::copy_n(p.peepholes.begin() + i * size, size, packed->peepholes[i].begin());
    layer.peepholes[i] = packed->peepholes[i].data();
  }
  const FixedFormat* const results[] = {&f.i, &f.f, &f.g, &f.o, &f.c_tanh};
  for (int i = 0; i < kLstmTables; ++i) {
    layer.tables[i] = pack_table(lstm.tables[i], *results[i], packed->tables[i]);
    layer.scalar_tables[i] = lstm.tables[i].data();
  }
  return packed;
}

}  // namespace qcore
