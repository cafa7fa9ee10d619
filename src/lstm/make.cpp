#include <algorithm>

#include "lstm/cpu/packed.h"
#include "recurrent/gate_tables.h"
#include "runtime/check.h"

namespace qcore {
namespace {

using numerics::kLstmGates;
using numerics::kLstmPeepholes;
using numerics::LstmCell;

constexpr const char* kOp = "lstm";

void check_parameters(const LstmParameters& p) {
  const LstmFormats& f = p.formats;
  check_sizes(kOp, p.input_size, p.hidden_size, p.weight_bits, p.bias_bits);
  check_format(kOp, "x", f.x, true);
  check_format(kOp, "h", f.h, true);
  check_format(kOp, "c", f.c, false);
  check_format(kOp, "wx", f.wx, true);
  check_format(kOp, "rh", f.rh, true);
  check_format(kOp, "i_pre", f.i_pre, true);
  check_format(kOp, "f_pre", f.f_pre, true);
  check_format(kOp, "g_pre", f.g_pre, true);
  check_format(kOp, "o_pre", f.o_pre, true);
  check_format(kOp, "i", f.i, false);
  check_format(kOp, "f", f.f, false);
  check_format(kOp, "g", f.g, false);
  check_format(kOp, "o", f.o, false);
  check_format(kOp, "c_tanh", f.c_tanh, false);
  QCORE_CHECK_VALUE(f.x.is_signed && f.h.is_signed && f.c.is_signed,
                    "lstm: formats of x, h or c are unsigned, expected signed ones");
  const std::int64_t rows = kLstmGates * p.hidden_size, size = p.projection_size;
  QCORE_CHECK_VALUE(size >= 0 && size <= 1 << 20, "lstm: projection_size is ", size, ", expected 0 to ", 1 << 20);
  if (size) {
    check_format(kOp, "m", f.m, true);
    QCORE_CHECK_VALUE(f.m.is_signed, "lstm: format of m is unsigned, expected a signed one");
  }
  check_weights(kOp, "w", p.w, p.weight_bits, rows * p.input_size);
  check_weights(kOp, "r", p.r, p.weight_bits, rows * p.state_size());
  check_weights(kOp, "projection", p.projection, p.weight_bits, size * p.hidden_size);
  check_biases(kOp, "b", p.b, p.bias_bits, rows);
  check_exponents(kOp, "w_exponents", p.w_exponents, rows);
  check_exponents(kOp, "r_exponents", p.r_exponents, rows);
  check_exponents(kOp, "b_exponents", p.b_exponents, rows);
  check_exponents(kOp, "projection_exponents", p.projection_exponents, size);
  const std::int64_t peepholes = p.peepholes.empty() ? 0 : kLstmPeepholes;
  check_weights(kOp, "peepholes", p.peepholes, 16, peepholes * p.hidden_size);
  check_exponents(kOp, "peephole_exponents", p.peephole_exponents, peepholes);
}

LstmCell make_cell(const LstmParameters& p) {
  const LstmFormats& f = p.formats;
  const FixedFormat& m = p.projection_size ? f.m : f.h;
  LstmCell cell{};
  cell.wx = range_of(f.wx), cell.rh = range_of(f.rh), cell.c = range_of(f.c), cell.m = range_of(m);
  const FixedFormat* const pre[] = {&f.i_pre, &f.f_pre, &f.g_pre, &f.o_pre};
  static constexpr const char* kWx[] = {"Wx for i", "Wx for f", "Wx for g", "Wx for o"};
  static constexpr const char* kRh[] = {"Rh for i", "Rh for f", "Rh for g", "Rh for o"};
  for (int gate = 0; gate < kLstmGates; ++gate) {
    cell.pre[gate] = range_of(*pre[gate]);
    cell.wx_to_pre[gate] = checked_shift(kOp, kWx[gate], f.wx.exponent, pre[gate]->exponent, reach(f.wx));
    cell.rh_to_pre[gate] = checked_shift(kOp, kRh[gate], f.rh.exponent, pre[gate]->exponent, reach(f.rh));
  }
  cell.peepholes = !p.peepholes.empty();
  static constexpr const char* kPc[] = {"P c for i", "P c for f", "P c for o"};
  for (int i = 0; cell.peepholes && i < kLstmPeepholes; ++i)
    cell.p_c_to_pre[i] =
        checked_shift(kOp, kPc[i], p.peephole_exponents[i] + f.c.exponent,
                      pre[numerics::lstm_peephole_gate(i)]->exponent, peephole_reach(p, i) * reach(f.c));
  const int f_c = f.f.exponent + f.c.exponent, i_g = f.i.exponent + f.g.exponent, finer = std::max(f_c, i_g);
  const std::int64_t f_c_reach = reach(f.f) * reach(f.c), i_g_reach = reach(f.i) * reach(f.g);
  cell.f_c_left = -checked_shift(kOp, "f * c", f_c, finer, f_c_reach);
  cell.i_g_left = -checked_shift(kOp, "i * g", i_g, finer, i_g_reach);
  cell.sum_to_c = checked_shift(kOp, "f * c + i * g", finer, f.c.exponent,
                                (f_c_reach << cell.f_c_left) + (i_g_reach << cell.i_g_left));
  cell.o_c_tanh_to_m =
      checked_shift(kOp, "o * tanh(c)", f.o.exponent + f.c_tanh.exponent, m.exponent, reach(f.o) * reach(f.c_tanh));
  return cell;
}

}  // namespace

QuantizedLstm::QuantizedLstm(std::shared_ptr<const LstmStorage> storage) : storage_(std::move(storage)) {}

QuantizedLstm QuantizedLstm::make(const LstmParameters& p) {
  check_parameters(p);
  auto made = std::make_shared<LstmStorage>();
  made->parameters = p;
  const LstmFormats& f = p.formats;
  made->x_format = CodeFormat(f.x);
  made->h_format = CodeFormat(f.h);
  made->c_format = CodeFormat(f.c);
  const auto table = [&](const char* name, std::vector<std::int32_t> exact, const FixedFormat& argument, int index) {
    made->tables[index] = gate_table(kOp, name, std::move(exact), argument, p.tables, made->knots[index]);
  };
  table("i", sigmoid_table(f.i_pre, f.i), f.i_pre, 0);
  table("f", sigmoid_table(f.f_pre, f.f), f.f_pre, 1);
  table("g", tanh_table(f.g_pre, f.g), f.g_pre, 2);
  table("o", sigmoid_table(f.o_pre, f.o), f.o_pre, 3);
  table("c_tanh", tanh_table(f.c, f.c_tanh), f.c, 4);
  made->cell = make_cell(p);
  made->wx =
      prepare_product({kOp, "W x", p.rounding, p.w, p.w_exponents, p.input_size, f.x, f.wx, &p.b, &p.b_exponents});
  made->rh = prepare_product({kOp, "R h", p.rounding, p.r, p.r_exponents, p.state_size(), f.h, f.rh, nullptr, nullptr});
  if (p.projection_size)
    made->projection = prepare_product({kOp, "projection of m", p.rounding, p.projection, p.projection_exponents,
                                        p.hidden_size, f.m, f.h, nullptr, nullptr});
  made->packed = pack_lstm(*made);
  return QuantizedLstm(std::move(made));
}

const LstmParameters& QuantizedLstm::parameters() const { return storage_->parameters; }

const std::vector<std::int32_t>& QuantizedLstm::table(int index) const {
  QCORE_CHECK_VALUE(index >= 0 && index < kLstmTables, "lstm: table is ", index, ", expected 0 to 4");
  return storage_->tables[index];
}

const TableKnots& QuantizedLstm::knots(int index) const {
  QCORE_CHECK_VALUE(index >= 0 && index < kLstmTables, "lstm: table is ", index, ", expected 0 to 4");
  return storage_->knots[index];
}

}  // namespace qcore
