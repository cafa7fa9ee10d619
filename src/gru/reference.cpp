#include "gru/code_access.h"
#include "gru/dispatch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using numerics::GruScalar;

// Codes (less their zero point) of weights times `input` for all rows of 3H. The input's zero point is in the offsets.
template <class L>
void multiply(const std::vector<std::int16_t>& weights, const std::int32_t* input, std::int32_t input_zero,
              std::int64_t features, const std::vector<std::int64_t>& offsets, const std::vector<int>& shifts,
              const numerics::GruRange& range, std::int64_t* products) {
  for (std::size_t n = 0; n < shifts.size(); ++n) {
    std::int64_t total = offsets[n];
    for (std::int64_t k = 0; k < features; ++k)
      total += static_cast<std::int64_t>(weights[n * features + k]) * (input[k] + input_zero);
    products[n] = L::clamped(L::shifted(total, shifts[n]), range);
  }
}

// One row's steps.
template <class L>
class Row {
 public:
  Row(const GruStorage& gru, Scratch& scratch)
      : gru_(gru), c_(gru.parameters.input_size), size_(gru.parameters.hidden_size) {
    x = scratch.take<std::int32_t>(c_);
    h = scratch.take<std::int32_t>(size_);
    trace = scratch.take<std::int32_t>(kTraceTensors * size_);
    wx_ = scratch.take<std::int64_t>(3 * size_);
    rh_ = scratch.take<std::int64_t>(3 * size_);
  }

  // From x and h to h and trace.
  void step() const {
    const GruParameters& p = gru_.parameters;
    const GruFormats& f = p.formats;
    const bool staged = p.pipeline == GruPipeline::staged;
    const numerics::GruTables<L> tables{gru_.tables[0].data(), gru_.tables[1].data(), gru_.tables[2].data()};
    multiply<L>(p.w, x, f.x.zero_point, c_, gru_.wx_offsets, gru_.wx_shifts, gru_.cell.wx, wx_);
    multiply<L>(p.r, h, f.h.zero_point, size_, gru_.rh_offsets, gru_.rh_shifts, gru_.cell.rh, rh_);
    for (std::int64_t n = 0; n < 3 * size_; ++n) {
      trace[n] = code(wx_[n], f.wx);
      trace[3 * size_ + n] = code(rh_[n], f.rh);
    }
    for (std::int64_t j = 0; j < size_; ++j) {
      const numerics::GruInputs<L> in{
          {wx_[j], wx_[size_ + j], wx_[2 * size_ + j]}, {rh_[j], rh_[size_ + j], rh_[2 * size_ + j]}, h[j]};
      const auto out = staged ? numerics::gru_staged<L>(in, bias(j), gru_.cell, tables)
                              : numerics::gru_fused<L>(in, gru_.cell, tables);
      h[j] = static_cast<std::int32_t>(out.h);
      const std::int32_t codes[] = {code(out.z_pre, f.z_pre),
                                    code(out.r_pre, f.r_pre),
                                    staged ? code(out.rb, f.rb) : code(in.rh[2], f.rh),
                                    staged ? code(out.rrh, f.rrh) : 0,
                                    code(out.g_pre, f.g_pre),
                                    code(out.z, f.z),
                                    code(out.r, f.r),
                                    code(out.g, f.g),
                                    staged ? code(out.old_part, f.old_part) : 0,
                                    staged ? code(out.new_part, f.new_part) : 0,
                                    code(out.h, f.h)};
      for (int i = 0; i < kTraceTensors - 6; ++i) trace[(6 + i) * size_ + j] = codes[i];
    }
  }

  std::int32_t *x, *h;  // codes less their zero point
  std::int32_t* trace;  // codes, as GruRun::trace has them

 private:
  static std::int32_t code(typename L::I centered, const FixedFormat& format) {
    return static_cast<std::int32_t>(centered + format.zero_point);
  }

  numerics::GruBiases<L> bias(std::int64_t j) const {
    return {gru_.biases[0][j], gru_.biases[1][j], gru_.biases[2][j], gru_.biases[3][j]};
  }

  const GruStorage& gru_;
  const std::int64_t c_, size_;
  std::int64_t *wx_, *rh_;
};

// Tensors of a trace that GruRun::gates holds: z, r, g, rb.
constexpr int kGates[] = {11, 12, 13, 8};

void store_row(const TensorView& to, std::int64_t at, std::int64_t stride, std::int64_t count,
               const std::int32_t* centered, const CodeFormat& format) {
  for (std::int64_t j = 0; j < count; ++j)
    store_centered(to.data, to.dtype, at + j * stride, centered ? centered[j] : 0, format);
}

template <class L>
void run(const GruProblem& problem) {
  const GruStorage& gru = *problem.gru;
  const std::int64_t c = gru.parameters.input_size, size = gru.parameters.hidden_size;
  const CodeFormat &x_format = gru.x_format, &h_format = gru.h_format;
  Scratch scratch;
  const Row<L> row(gru, scratch);
  const auto at = [](const TensorView& view, std::int64_t i, std::int64_t j) {
    return i * view.strides[0] + j * view.strides[1];
  };
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t length =
        problem.lengths.data ? static_cast<const std::int32_t*>(problem.lengths.data)[b * problem.lengths.strides[0]]
                             : problem.steps;
    for (std::int64_t j = 0; j < size; ++j)
      row.h[j] = problem.h0.data ? load_centered(problem.h0.data, problem.h0.dtype, at(problem.h0, b, j), h_format) : 0;
    for (std::int64_t i = 0; i < problem.steps; ++i) {
      const std::int64_t t = problem.reverse && i < length ? length - 1 - i : i;
      const std::int64_t y = at(problem.y, t, b);
      if (i < length) {
        for (std::int64_t k = 0; k < c; ++k)
          row.x[k] =
              load_centered(problem.x.data, problem.x.dtype, at(problem.x, t, b) + k * problem.x.strides[2], x_format);
        row.step();
      }
      store_row(problem.y, y, problem.y.strides[2], size, i < length ? row.h : nullptr, h_format);
      const auto store = [&](const TensorView& to, std::int64_t n, std::int32_t code) {
        static_cast<std::int32_t*>(to.data)[at(to, t, b) + n * to.strides[2]] = i < length ? code : 0;
      };
      if (problem.gates.data)
        for (std::int64_t n = 0; n < 4 * size; ++n)
          store(problem.gates, n, row.trace[kGates[n / size] * size + n % size]);
      if (problem.trace.data)
        for (std::int64_t n = 0; n < kTraceTensors * size; ++n) store(problem.trace, n, row.trace[n]);
    }
    if (problem.last.data)
      store_row(problem.last, at(problem.last, b, 0), problem.last.strides[1], size, row.h, h_format);
  }
}

}  // namespace

void run_gru_reference(const GruProblem& problem) {
  if (problem.gru->parameters.rounding == ShiftRounding::half_away)
    run<GruScalar<numerics::ShiftRounding::half_away>>(problem);
  else
    run<GruScalar<numerics::ShiftRounding::half_even>>(problem);
}

}  // namespace qcore
