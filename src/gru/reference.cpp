#include "recurrent/reference.h"

#include "gru/dispatch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using numerics::IntegerLanes;

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
    reset_ = scratch.take<std::int32_t>(size_);
    out_ = scratch.take<numerics::GruOutputs<L>>(size_);
  }

  // From x and h to h and trace.
  void step() const {
    const bool staged = gru_.parameters.pipeline == GruPipeline::staged;
    if (gru_.parameters.linear_before_reset)
      staged ? step_of<numerics::GruStagedCell<L>>() : step_of<numerics::GruFusedCell<L>>();
    else
      staged ? step_of<numerics::GruStagedResetCell<L>>() : step_of<numerics::GruFusedResetCell<L>>();
  }

  std::int32_t *x, *h;  // codes less their zero point
  std::int32_t* cell = nullptr;
  std::int32_t* trace;  // codes, as GruRun::trace has them

 private:
  template <class Stages>
  void step_of() const {
    const GruParameters& p = gru_.parameters;
    const GruFormats& f = p.formats;
    const numerics::GruTables<L> tables{gru_.tables[0].data(), gru_.tables[1].data(), gru_.tables[2].data()};
    multiply<L>(p.w, x, f.x.zero_point, c_, gru_.wx, gru_.cell.wx, wx_);
    multiply<L>(p.r, h, f.h.zero_point, size_, gru_.rh, gru_.cell.rh, rh_);
    for (std::int64_t j = 0; j < size_; ++j) {
      numerics::gru_gates<L, Stages>(inputs(j), bias<Stages>(j), gru_.cell, tables, out_[j]);
      if (Stages::kResetsState) reset_[j] = static_cast<std::int32_t>(out_[j].rrh);
    }
    if (Stages::kResetsState)
      multiply<L>(gru_.reset_weights, reset_, f.rrh.zero_point, size_, gru_.reset, gru_.cell.rh, rh_ + 2 * size_);
    for (std::int64_t n = 0; n < 3 * size_; ++n) {
      trace[n] = code(wx_[n], f.wx);
      trace[3 * size_ + n] = code(rh_[n], f.rh);
    }
    for (std::int64_t j = 0; j < size_; ++j) {
      auto& out = out_[j];
      numerics::gru_new_state<L, Stages>(inputs(j), bias<Stages>(j), gru_.cell, tables, out);
      h[j] = static_cast<std::int32_t>(out.h);
      constexpr bool kStaged = Stages::kStaged;
      const std::int32_t codes[] = {code(out.z_pre, f.z_pre),
                                    code(out.r_pre, f.r_pre),
                                    kStaged ? code(out.rb, f.rb) : code(rh_[2 * size_ + j], f.rh),
                                    kStaged || Stages::kResetsState ? code(out.rrh, f.rrh) : 0,
                                    code(out.g_pre, f.g_pre),
                                    code(out.z, f.z),
                                    code(out.r, f.r),
                                    code(out.g, f.g),
                                    kStaged ? code(out.old_part, f.old_part) : 0,
                                    kStaged ? code(out.new_part, f.new_part) : 0,
                                    code(out.h, f.h)};
      for (int i = 0; i < kTraceTensors - 6; ++i) trace[(6 + i) * size_ + j] = codes[i];
    }
  }

  numerics::GruInputs<L> inputs(std::int64_t j) const {
    return {{wx_[j], wx_[size_ + j], wx_[2 * size_ + j]}, {rh_[j], rh_[size_ + j], rh_[2 * size_ + j]}, h[j]};
  }

  static std::int32_t code(typename L::I centered, const FixedFormat& format) {
    return static_cast<std::int32_t>(centered + format.zero_point);
  }

  template <class Stages>
  numerics::GruBiases<L> bias(std::int64_t j) const {
    if (!Stages::kStaged) return {};
    return {gru_.biases[0][j], gru_.biases[1][j], gru_.biases[2][j], gru_.biases[3][j]};
  }

  const GruStorage& gru_;
  const std::int64_t c_, size_;
  std::int64_t *wx_, *rh_;
  std::int32_t* reset_;  // r * h, codes less their zero point; linear_before_reset = 0
  numerics::GruOutputs<L>* out_;
};

// Tensors of a trace that GruRun::gates holds: z, r, g, rb.
constexpr int kGates[] = {11, 12, 13, 8};

template <class L>
void run(const GruProblem& problem) {
  const GruStorage& gru = *problem.gru;
  Scratch scratch;
  const Row<L> row(gru, scratch);
  const std::int64_t size = gru.parameters.hidden_size;
  const ReferenceFormats formats{gru.parameters.input_size, size, size, gru.x_format, gru.h_format, {}};
  run_reference(problem, row, formats, kTraceTensors * size, kGates, 4);
}

}  // namespace

void run_gru_reference(const GruProblem& problem) {
  if (problem.gru->parameters.rounding == ShiftRounding::half_away)
    run<IntegerLanes<numerics::ShiftRounding::half_away>>(problem);
  else
    run<IntegerLanes<numerics::ShiftRounding::half_even>>(problem);
}

}  // namespace qcore
