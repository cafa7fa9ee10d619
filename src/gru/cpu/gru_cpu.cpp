#include <algorithm>
#include <cstring>

#include "gru/cpu/gru_packed.h"
#include "gru/dispatch.h"
#include "qcore/kernels.h"
#include "runtime/memory.h"
#include "runtime/phases.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

// Largest size of the products W x that are computed ahead of their steps: they stay in the second-level cache until
// they are used.
constexpr std::int64_t kAheadBytes = 192 << 10;
constexpr std::int64_t kMaxStepsAhead = 64;
// Multiply-adds that are worth waking another thread for, and those of a step that are worth a synchronization.
constexpr std::int64_t kParallelWork = 1 << 20, kParallelStep = 1 << 17;

// A range of 0 .. count, one of `parts`.
struct Share {
  std::int64_t first, end;
  Share(std::int64_t count, int part, int parts) : first(count * part / parts), end(count * (part + 1) / parts) {}
};

std::int64_t sum_of_bytes(const std::uint8_t* bytes, std::int64_t count) {
  std::uint32_t sum = 0;  // of at most 2 * kMaxFeatures bytes
  for (std::int64_t i = 0; i < count; ++i) sum += bytes[i];
  return sum;
}

GruElements elements(const TensorView& view) {
  return {view.data, code_element(view.dtype), 0, view.rank ? view.strides[view.rank - 1] : 0};
}

// Rows [first, first + count) of a problem, through all steps. Its methods take shares of the work, so that several
// threads can do what one method does.
class Rows {
 public:
  Rows(const GruProblem& problem, const GruKernels& kernels, std::int64_t first, std::int64_t count, Scratch& scratch)
      : problem_(problem), kernels_(kernels), layer_(problem.gru->packed->layer), first_(first), count_(count) {
    const std::int64_t wx_row = layer_.groups * kGruGates * kGruGroup;
    const std::int64_t fitting = kAheadBytes / (count * wx_row * static_cast<std::int64_t>(sizeof(std::int16_t)));
    steps_ahead_ = std::max<std::int64_t>(1, std::min({fitting, kMaxStepsAhead, problem.steps}));
    x_ = planes(layer_.input, steps_ahead_ * count, scratch);
    for (GruPlanes& h : h_) h = planes(layer_.state, count, scratch);
    // Behind a row's features the planes of a state are zeros, as those of inputs are.
    for (const GruPlanes& h : h_) std::memset(h.data, 0, count * h.row_stride * layer_.state.input_planes);
    wx_ = scratch.take<std::int16_t>(steps_ahead_ * count * wx_row);
    if (layer_.input.weight_planes == 2) sums_ = scratch.take<std::int64_t>(steps_ahead_ * count);
    places_ = scratch.take<GruPlace>(2 * count);
  }

  std::int64_t steps_ahead() const { return steps_ahead_; }
  std::int64_t groups() const { return layer_.groups; }

  // Row `row`'s initial state, and where its first step is written.
  void begin(std::int64_t row) {
    const GruPlanes to = plane_row(h_[0], row);
    const int planes = layer_.state.input_planes;
    const std::int64_t size = layer_.size;
    if (problem_.h0.data) {
      GruElements from = elements(problem_.h0);
      from.at = (first_ + row) * problem_.h0.strides[0];
      kernels_.pack(from, size, layer_.h, h_bias(), planes, to);
    } else {
      const std::int32_t zero = h_bias();
      std::memset(to.data, planes == 2 ? zero >> 8 : zero, size);
      if (planes == 2) std::memset(to.data + to.plane_stride, zero & 255, size);
    }
    prepare_step(0, row);
  }

  // Inputs of steps [from, from + steps_ahead) of a share of these (step, row) pairs.
  void pack_inputs(std::int64_t from, int part, int parts) {
    const Share share(steps_at(from) * count_, part, parts);
    for (std::int64_t i = share.first; i < share.end; ++i) {
      const std::int64_t row = i % count_,
                         step = std::min(from + i / count_, std::max<std::int64_t>(0, length(row) - 1));
      GruElements x = elements(problem_.x);
      x.at = time_of(step, row) * problem_.x.strides[0] + (first_ + row) * problem_.x.strides[1];
      const GruPlanes to = plane_row(x_, i);
      kernels_.pack(x, layer_.input.features, layer_.x, layer_.input.input_bias + layer_.x.zero,
                    layer_.input.input_planes, to);
      if (layer_.input.weight_planes == 2) sums_[i] = input_sum(layer_.input, to);
    }
  }

  void multiply_inputs(std::int64_t from, Share groups) {
    const GruInputTile tile{x_, sums_, steps_at(from) * count_, groups.first, groups.end, wx_};
    kernels_.multiply_inputs(layer_, tile);
  }

  void step(std::int64_t step, Share groups) {
    const std::int64_t odd = step % 2;
    Scratch scratch;
    std::int64_t* sums = nullptr;
    if (layer_.state.weight_planes == 2) {
      sums = scratch.take<std::int64_t>(count_);
      for (std::int64_t row = 0; row < count_; ++row) sums[row] = input_sum(layer_.state, plane_row(h_[odd], row));
    }
    GruStepTile tile{};
    tile.h = h_[odd];
    tile.next_h = h_[1 - odd];
    tile.sums = sums;
    tile.rows = count_;
    tile.first_group = groups.first;
    tile.end_group = groups.end;
    tile.wx = wx_ + step % steps_ahead_ * count_ * layer_.groups * kGruGates * kGruGroup;
    tile.places = places_ + odd * count_;
    tile.y = elements(problem_.y);
    tile.gates = elements(problem_.gates);
    kernels_.step(layer_, tile);
    // One of those who share the step prepares the next; what it writes is not what this step reads.
    if (groups.first == 0 && step + 1 < problem_.steps)
      for (std::int64_t row = 0; row < count_; ++row) prepare_step(step + 1, row);
  }

  void end() {
    if (!problem_.last.data) return;
    const GruPlanes& h = h_[problem_.steps % 2];
    for (std::int64_t row = 0; row < count_; ++row) {
      GruElements to = elements(problem_.last);
      to.at = (first_ + row) * problem_.last.strides[0];
      kernels_.unpack(plane_row(h, row), layer_.size, layer_.h, h_bias(), layer_.state.input_planes, to);
    }
  }

 private:
  static GruPlanes planes(const GruProduct& product, std::int64_t rows, Scratch& scratch) {
    const std::int64_t stride = round_up(product.features, 64);
    return {scratch.take<std::uint8_t>(rows * stride * product.input_planes), stride, rows * stride};
  }
  static GruPlanes plane_row(const GruPlanes& all, std::int64_t row) {
    return {all.row(row), all.row_stride, all.plane_stride};
  }
  static std::int64_t input_sum(const GruProduct& product, const GruPlanes& row) {
    const std::int64_t upper = sum_of_bytes(row.data, row.row_stride);
    return product.input_planes == 1 ? upper : 256 * upper + sum_of_bytes(row.data + row.plane_stride, row.row_stride);
  }

  std::int32_t h_bias() const { return layer_.state.input_bias + layer_.h.zero; }
  std::int64_t steps_at(std::int64_t from) const { return std::min(steps_ahead_, problem_.steps - from); }

  std::int64_t length(std::int64_t row) const {
    return problem_.lengths.data
               ? static_cast<const std::int32_t*>(problem_.lengths.data)[(first_ + row) * problem_.lengths.strides[0]]
               : problem_.steps;
  }

  // Where a row's step lies along T. Steps beyond its length are written in order.
  std::int64_t time_of(std::int64_t step, std::int64_t row) const {
    const std::int64_t steps = length(row);
    return problem_.reverse && step < steps ? steps - 1 - step : step;
  }

  void prepare_step(std::int64_t step, std::int64_t row) {
    const std::int64_t t = time_of(step, row), b = first_ + row;
    GruPlace& place = places_[step % 2 * count_ + row];
    place.y = t * problem_.y.strides[0] + b * problem_.y.strides[1];
    place.gates = problem_.gates.data ? t * problem_.gates.strides[0] + b * problem_.gates.strides[1] : 0;
    place.active = step < length(row);
  }

  const GruProblem& problem_;
  const GruKernels& kernels_;
  const GruLayer& layer_;
  const std::int64_t first_, count_;
  std::int64_t steps_ahead_ = 1;
  GruPlanes x_{}, h_[2]{};  // the state before even and before odd steps
  std::int16_t* wx_ = nullptr;
  std::int64_t* sums_ = nullptr;
  GruPlace* places_ = nullptr;  // of even, then of odd steps
};

// By one thread.
void run_rows(const GruProblem& problem, const GruKernels& kernels, std::int64_t first, std::int64_t count) {
  Scratch scratch;
  Rows rows(problem, kernels, first, count, scratch);
  const Share all(rows.groups(), 0, 1);
  for (std::int64_t row = 0; row < count; ++row) rows.begin(row);
  for (std::int64_t step = 0; step < problem.steps; ++step) {
    if (step % rows.steps_ahead() == 0) {
      rows.pack_inputs(step, 0, 1);
      rows.multiply_inputs(step, all);
    }
    rows.step(step, all);
  }
  rows.end();
}

// All rows by several threads, each of which has some of the channels.
void run_channels(const GruProblem& problem, const GruKernels& kernels, int parts) {
  Scratch scratch;
  Rows rows(problem, kernels, 0, problem.batch, scratch);
  for (std::int64_t row = 0; row < problem.batch; ++row) rows.begin(row);
  const std::int64_t ahead = rows.steps_ahead(), cycle = ahead + 2;  // phases: inputs packed, multiplied, steps
  const std::int64_t whole = problem.steps / ahead, rest = problem.steps % ahead;
  PhasedParallelFor phases(whole * cycle + (rest ? rest + 2 : 0), parts);
  phases.run([&](std::int64_t phase, int part) {
    const std::int64_t from = phase / cycle * ahead, at = phase % cycle;
    const Share groups(rows.groups(), part, parts);
    if (at == 0)
      rows.pack_inputs(from, part, parts);
    else if (at == 1)
      rows.multiply_inputs(from, groups);
    else
      rows.step(from + at - 2, groups);
  });
  rows.end();
}

}  // namespace

const char* gru_vector_unsupported_reason(const GruProblem& problem) {
  if (problem.device.type != DeviceType::cpu) return "it runs on the CPU";
  if (!problem.gru->packed) return "it has more than 32768 features or channels";
  return nullptr;
}

void run_gru_vector(const GruProblem& problem, const GruKernels& kernels) {
  const GruParameters& p = problem.gru->parameters;
  const std::int64_t step = problem.batch * (p.input_size + p.hidden_size) * 3 * p.hidden_size;
  const int threads = get_num_threads();
  if (threads == 1 || step * problem.steps < kParallelWork) return run_rows(problem, kernels, 0, problem.batch);
  const std::int64_t groups = ceil_div(p.hidden_size, kGruGroup);
  if (problem.batch < 2 * threads && groups >= threads && step >= kParallelStep)
    return run_channels(problem, kernels, threads);
  const int tasks = static_cast<int>(std::min<std::int64_t>(threads, problem.batch));
  parallel_for(tasks, [&](std::int64_t task) {
    const Share rows(problem.batch, static_cast<int>(task), tasks);
    run_rows(problem, kernels, rows.first, rows.end - rows.first);
  });
}

}  // namespace qcore
