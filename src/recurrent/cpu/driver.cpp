#include "recurrent/cpu/driver.h"

#include <algorithm>
#include <cstring>

#include "qcore/kernels.h"
#include "recurrent/code_access.h"
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

ElementAxis elements(const TensorView& view) {
  return {view.data, code_element(view.dtype), 0, view.rank ? view.strides[view.rank - 1] : 0};
}

// A problem with the layer and the instruction set that it is for.
struct Run {
  const RecurrentProblem& problem;
  const RecurrentLayer& layer;
  const RecurrentKernels& kernels;
};

// Rows [first, first + count) of a problem, through all steps. Its methods take shares of the work, so that several
// threads can do what one method does.
class Rows {
 public:
  Rows(const Run& run, std::int64_t first, std::int64_t count, Scratch& scratch)
      : problem_(run.problem), kernels_(run.kernels), layer_(run.layer), first_(first), count_(count) {
    const std::int64_t wx_row = layer_.groups * layer_.gates * kChannelGroup;
    const std::int64_t fitting = kAheadBytes / (count * wx_row * static_cast<std::int64_t>(sizeof(std::int16_t)));
    steps_ahead_ = std::max<std::int64_t>(1, std::min({fitting, kMaxStepsAhead, problem_.steps}));
    x_ = planes(layer_.input, steps_ahead_ * count, scratch);
    for (BytePlanes& h : h_) h = planes(layer_.state, count, scratch);
    // Behind a row's features the planes of a state are zeros, as those of inputs are.
    for (const BytePlanes& h : h_) std::memset(h.data, 0, count * h.row_stride * layer_.state.input_planes);
    wx_ = scratch.take<std::int16_t>(steps_ahead_ * count * wx_row);
    if (layer_.input.weight_planes == 2) sums_ = scratch.take<std::int64_t>(steps_ahead_ * count);
    places_ = scratch.take<StepPlace>(2 * count);
    if (layer_.has_second) {
      second_ = planes(layer_.second, count, scratch);
      std::memset(second_.data, 0, count * second_.row_stride * layer_.second.input_planes);
      update_ = scratch.take<std::int32_t>(count * cell_row());
    }
    if (layer_.has_cell) cell_ = scratch.take<std::int32_t>(count * cell_row());
  }

  std::int64_t steps_ahead() const { return steps_ahead_; }
  std::int64_t groups(int half) const { return half ? ceil_div(layer_.second_size, kChannelGroup) : layer_.groups; }
  int halves() const { return layer_.has_second ? 2 : 1; }

  // Row `row`'s initial state, and where its first step is written.
  void begin(std::int64_t row) {
    const BytePlanes to = plane_row(h_[0], row);
    const int planes = layer_.state.input_planes;
    const std::int64_t size = layer_.state.features;
    if (problem_.h0.data) {
      ElementAxis from = elements(problem_.h0);
      from.at = (first_ + row) * problem_.h0.strides[0];
      kernels_.pack(from, size, layer_.h, h_bias(), planes, to);
    } else {
      const std::int32_t zero = h_bias();
      std::memset(to.data, planes == 2 ? zero >> 8 : zero, size);
      if (planes == 2) std::memset(to.data + to.plane_stride, zero & 255, size);
    }
    if (cell_) begin_cell(row);
    prepare_step(0, row);
  }

  // Inputs of steps [from, from + steps_ahead) of a share of these (step, row) pairs.
  void pack_inputs(std::int64_t from, int part, int parts) {
    const Share share(steps_at(from) * count_, part, parts);
    for (std::int64_t i = share.first; i < share.end; ++i) {
      const std::int64_t row = i % count_,
                         step = std::min(from + i / count_, std::max<std::int64_t>(0, length(row) - 1));
      ElementAxis x = elements(problem_.x);
      x.at = time_of(step, row) * problem_.x.strides[0] + (first_ + row) * problem_.x.strides[1];
      const BytePlanes to = plane_row(x_, i);
      kernels_.pack(x, layer_.input.features, layer_.x, layer_.input.input_bias + layer_.x.zero,
                    layer_.input.input_planes, to);
      if (layer_.input.weight_planes == 2) sums_[i] = input_sum(layer_.input, to);
    }
  }

  void multiply_inputs(std::int64_t from, Share groups) {
    const InputTile tile{x_, sums_, steps_at(from) * count_, groups.first, groups.end, wx_};
    kernels_.multiply_inputs(layer_, tile);
  }

  // `half`: the second one of a layer with has_second is 1, and begins when the first is done for all groups.
  void step(std::int64_t step, int half, Share groups) {
    const std::int64_t odd = step % 2;
    const CodeProduct& product = half ? layer_.second : layer_.state;
    const BytePlanes& inputs = half ? second_ : h_[odd];
    Scratch scratch;
    std::int64_t* sums = nullptr;
    if (product.weight_planes == 2) {
      sums = scratch.take<std::int64_t>(count_);
      for (std::int64_t row = 0; row < count_; ++row) sums[row] = input_sum(product, plane_row(inputs, row));
    }
    StepTile tile{};
    tile.h = h_[odd];
    tile.next_h = h_[1 - odd];
    tile.second = second_;
    tile.update = update_;
    tile.sums = sums;
    tile.rows = count_;
    tile.first_group = groups.first;
    tile.end_group = groups.end;
    tile.wx = wx_ + step % steps_ahead_ * count_ * layer_.groups * layer_.gates * kChannelGroup;
    tile.places = places_ + odd * count_;
    tile.cell = cell_;
    tile.y = elements(problem_.y);
    tile.gates = elements(problem_.gates);
    half ? kernels_.finish_step(layer_, tile) : kernels_.step(layer_, tile);
    // One of those who share the step prepares the next; what it writes is not what this step reads.
    if (half == 0 && groups.first == 0 && step + 1 < problem_.steps)
      for (std::int64_t row = 0; row < count_; ++row) prepare_step(step + 1, row);
  }

  void end() {
    const BytePlanes& h = h_[problem_.steps % 2];
    for (std::int64_t row = 0; row < count_; ++row) {
      if (problem_.last.data) {
        ElementAxis to = elements(problem_.last);
        to.at = (first_ + row) * problem_.last.strides[0];
        kernels_.unpack(plane_row(h, row), layer_.state.features, layer_.h, h_bias(), layer_.state.input_planes, to);
      }
      if (problem_.last_cell.data) {
        const ElementAxis to = elements(problem_.last_cell);
        const std::int64_t at = (first_ + row) * problem_.last_cell.strides[0];
        for (std::int64_t j = 0; j < layer_.size; ++j)
          store_centered(to.data, to.element, at + j * to.stride, cell_[row * cell_row() + j], layer_.cell_state);
      }
    }
  }

 private:
  static BytePlanes planes(const CodeProduct& product, std::int64_t rows, Scratch& scratch) {
    const std::int64_t stride = round_up(product.features, 64);
    return {scratch.take<std::uint8_t>(rows * stride * product.input_planes), stride, rows * stride};
  }
  static BytePlanes plane_row(const BytePlanes& all, std::int64_t row) {
    return {all.row(row), all.row_stride, all.plane_stride};
  }
  static std::int64_t input_sum(const CodeProduct& product, const BytePlanes& row) {
    const std::int64_t upper = sum_of_bytes(row.data, row.row_stride);
    return product.input_planes == 1 ? upper : 256 * upper + sum_of_bytes(row.data + row.plane_stride, row.row_stride);
  }

  std::int64_t cell_row() const { return layer_.groups * kChannelGroup; }

  void begin_cell(std::int64_t row) {
    std::int32_t* to = cell_ + row * cell_row();
    std::fill(to, to + cell_row(), 0);
    if (!problem_.c0.data) return;
    const ElementAxis from = elements(problem_.c0);
    const std::int64_t at = (first_ + row) * problem_.c0.strides[0];
    for (std::int64_t j = 0; j < layer_.size; ++j)
      to[j] = load_centered(from.data, from.element, at + j * from.stride, layer_.cell_state);
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
    StepPlace& place = places_[step % 2 * count_ + row];
    place.y = t * problem_.y.strides[0] + b * problem_.y.strides[1];
    place.gates = problem_.gates.data ? t * problem_.gates.strides[0] + b * problem_.gates.strides[1] : 0;
    place.active = step < length(row);
  }

  const RecurrentProblem& problem_;
  const RecurrentKernels& kernels_;
  const RecurrentLayer& layer_;
  const std::int64_t first_, count_;
  std::int64_t steps_ahead_ = 1;
  BytePlanes x_{}, h_[2]{}, second_{};  // the state before even and before odd steps; of has_second
  std::int16_t* wx_ = nullptr;
  std::int64_t* sums_ = nullptr;
  StepPlace* places_ = nullptr;                       // of even, then of odd steps
  std::int32_t *cell_ = nullptr, *update_ = nullptr;  // [count][groups][16]
};

// By one thread.
void run_rows(const Run& run, std::int64_t first, std::int64_t count) {
  Scratch scratch;
  Rows rows(run, first, count, scratch);
  for (std::int64_t row = 0; row < count; ++row) rows.begin(row);
  for (std::int64_t step = 0; step < run.problem.steps; ++step) {
    if (step % rows.steps_ahead() == 0) {
      rows.pack_inputs(step, 0, 1);
      rows.multiply_inputs(step, Share(rows.groups(0), 0, 1));
    }
    for (int half = 0; half < rows.halves(); ++half) rows.step(step, half, Share(rows.groups(half), 0, 1));
  }
  rows.end();
}

// All rows by several threads, each of which has some of the channels.
void run_channels(const Run& run, int parts) {
  const RecurrentProblem& problem = run.problem;
  Scratch scratch;
  Rows rows(run, 0, problem.batch, scratch);
  for (std::int64_t row = 0; row < problem.batch; ++row) rows.begin(row);
  const int halves = rows.halves();
  // Phases: inputs packed, multiplied, steps or their halves.
  const std::int64_t ahead = rows.steps_ahead(), cycle = ahead * halves + 2;
  const std::int64_t whole = problem.steps / ahead, rest = problem.steps % ahead;
  PhasedParallelFor phases(whole * cycle + (rest ? rest * halves + 2 : 0), parts);
  phases.run([&](std::int64_t phase, int part) {
    const std::int64_t from = phase / cycle * ahead, at = phase % cycle;
    const int half = at < 2 ? 0 : static_cast<int>((at - 2) % halves);
    const Share groups(rows.groups(half), part, parts);
    if (at == 0)
      rows.pack_inputs(from, part, parts);
    else if (at == 1)
      rows.multiply_inputs(from, groups);
    else
      rows.step(from + (at - 2) / halves, half, groups);
  });
  rows.end();
}

}  // namespace

const char* recurrent_vector_unsupported_reason(const RecurrentProblem& problem, bool packed) {
  if (problem.device.type != DeviceType::cpu) return "it runs on the CPU";
  if (!packed) return "it has more than 32768 features or channels";
  return nullptr;
}

void run_recurrent_vector(const RecurrentProblem& problem, const RecurrentLayer& layer,
                          const RecurrentKernels& kernels) {
  const Run run{problem, layer, kernels};
  const std::int64_t step = problem.batch * (layer.input.features + layer.state.features) * layer.gates * layer.size;
  const int threads = get_num_threads();
  if (threads == 1 || step * problem.steps < kParallelWork) return run_rows(run, 0, problem.batch);
  if (problem.batch < 2 * threads && layer.groups >= threads && step >= kParallelStep)
    return run_channels(run, threads);
  const int tasks = static_cast<int>(std::min<std::int64_t>(threads, problem.batch));
  parallel_for(tasks, [&](std::int64_t task) {
    const Share rows(problem.batch, static_cast<int>(task), tasks);
    run_rows(run, rows.first, rows.end - rows.first);
  });
}

}  // namespace qcore
