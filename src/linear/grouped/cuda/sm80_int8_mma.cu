#include "gemm/cuda/sm80_int8_mma/gemm.cuh"
#include "linear/cuda/sm80_int8_mma/passes.cuh"
#include "linear/cuda/tile_limits.h"
#include "linear/grouped/cuda/kernels.h"
#include "linear/grouped/cuda/operands.cuh"

namespace qcore {
namespace sm80_int8_mma {
namespace {

constexpr Shape kShape = Tuning::shape(Size::small);

struct ExpertArguments : Arguments {
  ExpertCounts experts;
};

// Rows of one expert, whose weight has whole panels.
class ExpertRows {
 public:
  static constexpr bool kWindow = false, kFours = false;

  __device__ ExpertRows(const ExpertArguments& a, const ExpertTile& tile) : a_(a), tile_(tile) {}
  __device__ std::int64_t first_panel() const {
    return begin() / PackedLayout::kPanelRows +
           static_cast<std::int64_t>(blockIdx.x) * (kShape.columns() / PackedLayout::kPanelRows);
  }
  __device__ std::int64_t last_panel() const { return last_column() / PackedLayout::kPanelRows; }  // exclusive end
  __device__ std::int64_t last_column() const { return begin() + a_.experts.outputs; }
  __device__ std::int64_t first_row() const { return tile_.first; }
  __device__ std::int64_t count() const { return tile_.end; }
  __device__ std::int64_t y_offset(int i) const { return a_.out.y.row_offset(a_.first_row + tile_.first + i); }
  __device__ std::int64_t row(int i) const { return tile_.first + i < tile_.end ? tile_.first + i : -1; }
  __device__ std::int64_t y_column(std::int64_t n) const { return n - begin(); }
  __device__ std::int64_t bias_shift() const { return tile_.expert * a_.experts.bias_stride; }

 private:
  __device__ std::int64_t begin() const { return tile_.expert * a_.experts.outputs; }

  const ExpertArguments& a_;
  ExpertTile tile_;
};

// One instance for blocks of all lengths: what experts compute with few rows each waits for their weights.
template <int kBits>
using ExpertGemm = Gemm<ExpertRows, kBits, 1, Blocks::part, true, Size::small>;

template <int kBits>
__global__ void __launch_bounds__(kShape.threads(), 3)
    grouped_int8_mma_kernel(const __grid_constant__ ExpertArguments a) {
  const ExpertTile tile = find_expert_tile(a.experts, a.first_row, a.x.rows, kShape.rows(), blockIdx.y);
  if (tile.first == tile.end) return;
  if (tile.expert == a.experts.experts) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kShape.columns(), end = first + kShape.columns();
    return store_nan(a.out, a.first_row, tile, kShape.rows(), first, end < a.experts.outputs ? end : a.experts.outputs);
  }
  const ExpertRows rows(a, tile);
  ExpertGemm<kBits>(a, rows).run();
}

template <int kBits>
void launch_bits(const ExpertArguments& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(a.experts.outputs, kShape.columns())),
                  static_cast<unsigned>(a.experts.most_tiles(a.x.rows, kShape.rows())));
  launch("grouped_int8_mma", grouped_int8_mma_kernel<kBits>,
         {grid, dim3(static_cast<unsigned>(kShape.threads())), ExpertGemm<kBits>::kSharedBytes}, stream, a);
}

}  // namespace
}  // namespace sm80_int8_mma

const char* grouped_int8_mma_unsupported_reason(const GroupedLinearProblem& problem) {
  if (const char* reason = tile_unsupported_reason(problem, true, 80)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (layout.blocks() > 1 && layout.block_size % sm80_int8_mma::kChunk)
    return "it takes block sizes that are multiples of 32";
  if (problem.outputs() % PackedLayout::kPanelRows) return "it takes N that are multiples of 16";
  return experts_unsupported_reason(problem);
}

void run_grouped_int8_mma(const GroupedLinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.outputs() == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  sm80_int8_mma::for_each_pass(
      problem, bounds, [&](const QuantizedRows<std::int8_t>& x, std::int64_t row, const DeviceWeight& w) {
        const sm80_int8_mma::ExpertArguments a{{x, row, w, expert_output(problem), 0}, expert_counts(problem)};
        w.bits == 8 ? sm80_int8_mma::launch_bits<8>(a, stream) : sm80_int8_mma::launch_bits<4>(a, stream);
      });
}

}  // namespace qcore
