#include "gemm/cuda/smem_pipeline.cuh"
#include "gemm/cuda/window/image_copies.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/cuda/ptx_tensor_map.cuh"
#include "runtime/memory.h"
#include "static/cuda/implicit_gemm.cuh"

// Products of whole warpgroups, y^T = W x^T: weights come from registers, as they are packed, codes from shared memory,
// to which the copy engine brings the pixels under a tap, with zeros in the padding. A warpgroup writes the zero point
// over those. Thread blocks of a cluster share the k of a tile where there are few tiles: sums of integers are exact in
// any order.
namespace qcore::static_gemm {
namespace {

constexpr int kColumns = 128, kStageK = 128;  // channels of a tile, k of a stage
constexpr int kPanels = kColumns / static_cast<int>(PackedLayout::kPanelRows);
constexpr int kPanelBytes = kStageK * static_cast<int>(PackedLayout::kPanelRows), kWeightUnit = 8;
constexpr int kConsumerWarps = kPanels, kPatchWarps = 4, kWarps = kConsumerWarps + kPatchWarps + 1;
constexpr int kThreads = kWarpSize * kWarps;
constexpr int kMaxCluster = 8, kMinStages = 2;  // of a thread block's share of k
constexpr int kMaxKernel = 16;                  // rows and columns of a window

struct LaunchArguments : Arguments {
  ptx::TensorMap pixels, panels_of_words;
  int cluster;  // thread blocks
  int tiles, tile_columns;
};

template <int kRows>
struct alignas(1024) Stage {
  char codes[kRows * kStageK];
  char weights[kPanels][kPanelBytes];
};

template <int kRows>
struct Shared {
  static constexpr int kStages = kRows == 128 ? 6 : 8;
  static constexpr int kPlaces = kStages + 2;   // the places of a tile are read until its codes are stored
  static constexpr int kStride = kColumns + 4;  // of a row of sums: rows that are written at once meet no bank twice

  SmemPipeline<Stage<kRows>, kStages> ring;
  ptx::Barrier ready[kStages];  // the zero point is in the stage's padding
  std::int64_t places[kPlaces][kRows];

  static constexpr std::size_t bytes() { return sizeof(Shared) + alignof(Shared); }
  __device__ static Shared& get(char* shared) {
    return reinterpret_cast<Shared&>(SmemPipeline<Stage<kRows>, kStages>::get(shared));
  }
  // Sums of a cluster's tile, where its stages were.
  __device__ std::int32_t* sums() { return reinterpret_cast<std::int32_t*>(ring.stages); }
  static_assert(sizeof(std::int32_t) * kRows * kStride <= sizeof(ring.stages));
};

// The tiles that a thread block computes, and its share of their stages.
struct Work {
  int tile, step, first_stage, last_stage;

  __device__ explicit Work(const LaunchArguments& a)
      : tile(static_cast<int>(blockIdx.x) / a.cluster), step(static_cast<int>(gridDim.x) / a.cluster) {
    const std::int64_t stages = a.taps() * (a.depth / kStageK);
    const int rank = ptx::cluster_rank();
    first_stage = static_cast<int>(stages * rank / a.cluster);
    last_stage = static_cast<int>(stages * (rank + 1) / a.cluster);
  }
};

// Which tap a stage multiplies, and from which of its channels on.
struct Tap {
  int row, column, channel;

  __device__ Tap(const Arguments& a, int stage) {
    const int of_tap = a.depth / kStageK, tap = stage / of_tap % (a.window.kernel[0] * a.window.kernel[1]);
    channel = stage % of_tap * kStageK;
    row = tap / a.window.kernel[1];
    column = tap - row * a.window.kernel[1];
  }
  __device__ __forceinline__ void next(const Arguments& a) {
    if ((channel += kStageK) < a.depth) return;
    channel = 0;
    if (++column < a.window.kernel[1]) return;
    column = 0;
    if (++row == a.window.kernel[0]) row = 0;
  }
};

// One thread has all stages copied.
template <int kRows>
__device__ __forceinline__ void copy_stages(const LaunchArguments& a, Shared<kRows>& shared, Work work) {
  constexpr int kUnits = kPanelBytes / kWeightUnit;
  PipelineState<Shared<kRows>::kStages> state;
  const Tap first_tap(a, work.first_stage);
  ptx::wait_for_earlier_kernels();
#pragma unroll 1
  for (; work.tile < a.tiles; work.tile += work.step) {
    const int tile_row = work.tile / a.tile_columns, panel = (work.tile - tile_row * a.tile_columns) * kPanels;
    const ResultPlace place(a.window, a.first, tile_row * kRows);
    const ptx::ImagePlace first{static_cast<int>(place.image - a.first_image),
                                place.row * a.window.stride[0] - a.window.before[0],
                                place.column * a.window.stride[1] - a.window.before[1]};
    Tap tap = first_tap;
#pragma unroll 1
    for (int stage = work.first_stage; stage < work.last_stage; ++stage, state.next(), tap.next(a)) {
      ptx::barrier_wait(shared.ring.empty[state.slot], state.parity ^ 1u);
      Stage<kRows>& to = shared.ring.stages[state.slot];
      ptx::Barrier& full = shared.ring.full[state.slot];
      ptx::barrier_expect(full, static_cast<int>(sizeof(to.codes) + sizeof(to.weights)));
      ptx::image_copy(to.codes, a.pixels, first, tap.row * a.window.dilation[0], tap.column * a.window.dilation[1],
                      tap.channel, full);
      ptx::tensor_copy(to.weights, a.panels_of_words, panel, stage * kUnits, full);
    }
  }
}

// A lane has a result of each tile: it finds the place of its codes, and writes the zero point over the zeros of its
// padding.
template <int kRows>
__device__ __forceinline__ void patch_stages(const LaunchArguments& a, Shared<kRows>& shared, Work work, int warp) {
  constexpr int kWarpRows = kRows / kPatchWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, own = warp * kWarpRows + lane;
  const auto bits_inside = [&](int at, int axis) {
    std::uint32_t bits = 0;
    for (int tap = 0; tap < a.window.kernel[axis]; ++tap, at += a.window.dilation[axis])
      if (at >= 0 && at < a.window.input[axis]) bits |= 1u << tap;
    return bits;
  };
  PipelineState<Shared<kRows>::kStages> state;
  const Tap first_tap(a, work.first_stage);
#pragma unroll 1
  for (int count = 0; work.tile < a.tiles; work.tile += work.step, ++count) {
    const int row = work.tile / a.tile_columns * kRows + own;
    std::uint32_t inside = ~0u;  // bits of the window's rows and columns
    if (lane < kWarpRows && row < a.results) {
      const ResultPlace place(a.window, a.first, row);
      shared.places[count % Shared<kRows>::kPlaces][own] = a.y.offset(place.image, 0, place.row, place.column);
      if (a.zero)
        inside = bits_inside(place.row * a.window.stride[0] - a.window.before[0], 0) |
                 bits_inside(place.column * a.window.stride[1] - a.window.before[1], 1) << kMaxKernel;
    }
    Tap tap = first_tap;
#pragma unroll 1
    for (int stage = work.first_stage; stage < work.last_stage; ++stage, state.next(), tap.next(a)) {
      ptx::barrier_wait(shared.ring.full[state.slot], state.parity);
      if (!(inside >> tap.row & inside >> (kMaxKernel + tap.column) & 1u)) {
        auto* codes = reinterpret_cast<uint4*>(&shared.ring.stages[state.slot].codes[own * kStageK]);
#pragma unroll
        for (int i = 0; i < kStageK / 16; ++i) codes[i] = {a.zero, a.zero, a.zero, a.zero};
        ptx::products_see_copies();
      }
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(shared.ready[state.slot], ptx::cluster_rank());
    }
  }
}

// A warpgroup multiplies 64 channels of a tile, a warp a panel: row `group` of its part of a product is channel
// 2*group, row group + 8 the one behind it.
template <bool kSignedX, int kRows>
class Consumer {
 public:
  __device__ Consumer(const LaunchArguments& a, Shared<kRows>& shared, int warp)
      : a_(a),
        shared_(shared),
        panel_(warp),
        group_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        quad_(static_cast<int>(threadIdx.x) % 4),
        rank_(ptx::cluster_rank()) {}

  __device__ void run(Work work) {
    for (int count = 0; work.tile < a_.tiles; work.tile += work.step, ++count) {
      multiply(work.last_stage - work.first_stage);
      if (a_.cluster == 1) store(work.tile, shared_.places[count % Shared<kRows>::kPlaces]);
    }
  }

  // To [results][channels].
  __device__ void store_sums(std::int32_t* sums) const {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<uint2*>(sums + (8 * j + 2 * quad_ + i) * Shared<kRows>::kStride + 16 * panel_ +
                                  2 * group_) = {static_cast<std::uint32_t>(sums_[4 * j + i]),
                                                 static_cast<std::uint32_t>(sums_[4 * j + 2 + i])};
  }

 private:
  // Operands a of the products of a stage.
  struct Weights {
    std::uint32_t a[kStageK / 32][4];

    __device__ __forceinline__ void load(const char* weights, int group, int quad) {
      const uint2* from = reinterpret_cast<const uint2*>(weights) + group;  // [steps, 8 pairs of channels]
#pragma unroll
      for (int i = 0; i < kStageK / 32; ++i) {
        const uint2 low = from[(8 * i + quad) * 8], high = from[(8 * i + 4 + quad) * 8];
        a[i][0] = low.x, a[i][1] = low.y, a[i][2] = high.x, a[i][3] = high.y;
      }
    }
  };

  __device__ __forceinline__ void multiply(int left) {
    Weights weights[2];
    bool add = false;
    wait_for(state_);
    weights[0].load(shared_.ring.stages[state_.slot].weights[panel_], group_, quad_);
    for (; left > 2; left -= 2, add = true) {
      add_stage(weights[0], weights[1], add);
      add_stage(weights[1], weights[0], true);
    }
    if (left == 1) return add_last_stage(weights[0], add);
    add_stage(weights[0], weights[1], add);
    add_last_stage(weights[1], true);
  }
  // Waits for the next stage before the products begin: a branch until they end would free their operands' registers.
  __device__ __forceinline__ void add_stage(const Weights& weights, Weights& next, bool add) {
    const auto here = state_;
    state_.next();
    wait_for(state_);
    issue(weights, shared_.ring.stages[here.slot], add);
    next.load(shared_.ring.stages[state_.slot].weights[panel_], group_, quad_);
    ptx::product_wait(sums_);
    release(here);
  }
  __device__ __forceinline__ void add_last_stage(const Weights& weights, bool add) {
    issue(weights, shared_.ring.stages[state_.slot], add);
    ptx::product_wait(sums_);
    release(state_);
    state_.next();
  }
  using State = PipelineState<Shared<kRows>::kStages>;
  __device__ __forceinline__ void wait_for(const State& state) {
    ptx::barrier_wait(shared_.ring.full[state.slot], state.parity);
    ptx::barrier_wait(shared_.ready[state.slot], state.parity);
  }
  __device__ __forceinline__ void release(const State& state) {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) ptx::barrier_arrive(shared_.ring.empty[state.slot], rank_);
  }
  __device__ __forceinline__ void issue(const Weights& weights, const Stage<kRows>& stage, bool add) {
    const ptx::SwizzledRows codes = ptx::swizzled_rows(stage.codes);
    ptx::product_fence();
#pragma unroll
    for (int i = 0; i < kStageK / 32; ++i)
      ptx::product<kRows, kSignedX>(sums_, weights.a[i], ptx::next_k(codes, 32 * i), i > 0 || add);
    ptx::product_commit();
  }

  // Two lanes that hold two channels each of the same two results exchange them: each then stores four channels of one
  // result at once.
  __device__ __forceinline__ void store(int tile, const std::int64_t* places) const {
    const int tile_row = tile / a_.tile_columns, odd = group_ % 2;
    const std::int64_t n =
        static_cast<std::int64_t>(tile - tile_row * a_.tile_columns) * kColumns + 16 * panel_ + 2 * (group_ - odd);
    const RequantizedChannels channels(a_.requantization, n, a_.n);
    auto* y = static_cast<std::uint8_t*>(const_cast<void*>(a_.y.data)) + n * a_.y.channel;
    const int results = a_.results - tile_row * kRows;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const std::int32_t* own = sums_ + 4 * j;
      const std::int32_t first = __shfl_xor_sync(kAllLanes, odd ? own[0] : own[1], 4),
                         second = __shfl_xor_sync(kAllLanes, odd ? own[2] : own[3], 4);
      const std::int32_t four[4] = {odd ? first : own[0], odd ? second : own[2], odd ? own[1] : first,
                                    odd ? own[3] : second};
      const int row = 8 * j + 2 * quad_ + odd;
      if (row < results && n < a_.n) channels.store(y + places[row], a_.y.channel, channels.codes(four));
    }
  }

  const LaunchArguments& a_;
  Shared<kRows>& shared_;
  State state_;
  int panel_, group_, quad_, rank_;
  std::int32_t sums_[kRows / 2];
};

// Adds up the sums of a cluster's thread blocks for this one's part of the results, and stores their codes: a warp has
// all channels of a result.
template <int kRows>
__device__ __forceinline__ void store_shared_sums(const LaunchArguments& a, Shared<kRows>& shared, int tile) {
  const int tile_row = tile / a.tile_columns, rows = kRows / a.cluster, first = ptx::cluster_rank() * rows;
  const int quad = static_cast<int>(threadIdx.x) % kWarpSize * 4, results = a.results - tile_row * kRows;
  const std::int64_t n = static_cast<std::int64_t>(tile - tile_row * a.tile_columns) * kColumns + quad;
  if (n >= a.n) return;
  const RequantizedChannels channels(a.requantization, n, a.n);
  auto* y = static_cast<std::uint8_t*>(const_cast<void*>(a.y.data)) + n * a.y.channel;
#pragma unroll 2
  for (int row = first + static_cast<int>(threadIdx.x) / kWarpSize; row < first + rows; row += kWarps) {
    if (row >= results) break;
    uint4 parts[kMaxCluster] = {};
#pragma unroll
    for (int i = 0; i < kMaxCluster; ++i)
      if (i < a.cluster) parts[i] = ptx::cluster_load(shared.sums() + row * Shared<kRows>::kStride + quad, i);
    std::uint32_t sums[4] = {};
#pragma unroll
    for (const uint4& part : parts) sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
    channels.store(y + shared.places[0][row], a.y.channel, channels.codes(sums));
  }
}

template <bool kSignedX, int kRows>
__global__ void __launch_bounds__(kThreads, 1) static_wgmma_kernel(const __grid_constant__ LaunchArguments a) {
  auto& shared = Shared<kRows>::get(dynamic_shared());
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpSize, 0);
  ptx::let_next_kernel_start();
  if (threadIdx.x == kWarpSize) ptx::prefetch_map(a.pixels), ptx::prefetch_map(a.panels_of_words);
  if (threadIdx.x == 0) {
    shared.ring.init(1, kConsumerWarps);
    for (ptx::Barrier& ready : shared.ready) ptx::barrier_init(ready, kPatchWarps);
    ptx::barriers_are_ready();
  }
  __syncthreads();
  const Work work(a);
  Consumer<kSignedX, kRows> consumer(a, shared, warp);
  if (warp < kConsumerWarps)
    consumer.run(work);
  else if (warp < kConsumerWarps + kPatchWarps)
    patch_stages(a, shared, work, warp - kConsumerWarps);
  else if (threadIdx.x % kWarpSize == 0)
    copy_stages(a, shared, work);
  if (a.cluster == 1) return;
  __syncthreads();
  if (warp < kConsumerWarps) consumer.store_sums(shared.sums());
  ptx::cluster_sync();
  store_shared_sums(a, shared, work.tile);
  ptx::cluster_sync();  // no thread block's memory goes away while others read it
}

template <bool kSignedX, int kRows>
void launch_kernel(const LaunchArguments& a, cudaStream_t stream) {
  const auto kernel = static_wgmma_kernel<kSignedX, kRows>;
  const auto cluster = static_cast<unsigned>(a.cluster), tiles = static_cast<unsigned>(a.tiles);
  LaunchShape shape{dim3(tiles * cluster), dim3(kThreads), Shared<kRows>::bytes(), dim3(cluster), true};
  if (a.cluster == 1) {
    const auto resident = static_cast<unsigned>(resident_clusters("static_wgmma", kernel, shape));
    if (tiles > resident) shape.grid = dim3(resident);
  }
  launch("static_wgmma", kernel, shape, stream, a);
}

template <int kRows>
void launch_rows(const Arguments& arguments, int cluster, cudaStream_t stream) {
  LaunchArguments a{arguments, {}, {}, cluster, 0, 0};
  a.tile_columns = static_cast<int>(ceil_div(a.n, kColumns));
  a.tiles = a.tile_columns * static_cast<int>(ceil_div(a.results, kRows));
  const DeviceWindow& window = a.window;
  const std::int64_t column = window.input[1] > 1 ? window.column : a.depth,
                     row = window.input[0] > 1 ? window.row : column * window.input[1],
                     image = a.images > 1 ? window.image : row * window.input[0];
  a.pixels = ptx::image_map(image_parts(a.x, 1, a.images, window, a.depth, image, row, column, kRows));
  const std::int64_t units = std::int64_t{a.taps()} * a.depth * PackedLayout::kPanelRows / kWeightUnit;
  a.panels_of_words =
      ptx::tensor_map({a.words, kWeightUnit, a.panels, units, units, kPanels, kPanelBytes / kWeightUnit, false});
  a.x_signed ? launch_kernel<true, kRows>(a, stream) : launch_kernel<false, kRows>(a, stream);
}

// Tiles of 128 results where there are enough of them, else of 64, whose k is shared while there are too few.
void run(const Arguments& a, cudaStream_t stream) {
  const std::int64_t columns = ceil_div(a.n, kColumns);
  if (columns * ceil_div(a.results, 128) >= a.enough_tiles) return launch_rows<128>(a, 1, stream);
  const std::int64_t tiles = columns * ceil_div(a.results, 64), stages = a.taps() * (a.depth / kStageK);
  int cluster = 1;
  while (cluster < kMaxCluster && tiles * cluster < a.enough_tiles && stages > 2 * kMinStages * cluster) cluster *= 2;
  launch_rows<64>(a, cluster, stream);
}

}  // namespace
}  // namespace qcore::static_gemm

namespace qcore {

const char* static_sm90_int8_implicit_gemm_unsupported_reason(const StaticProblem& problem) {
  if (const char* reason = static_sm75_int8_implicit_gemm_unsupported_reason(problem)) return reason;
  const StaticLayer& layer = *problem.layer;
  if (layer.window.groups != 1) return "it takes one group";
  if (layer.layout.k == 0 || layer.layout.k % static_gemm::kStageK || layer.layout.taps == 0)
    return "it takes multiples of 128 channels";
  if (problem.rows.kernel > static_gemm::kMaxKernel || problem.columns.kernel > static_gemm::kMaxKernel ||
      !fits_image_copies(problem.rows) || !fits_image_copies(problem.columns))
    return "it takes windows of up to 16 by 16 within 256 pixels, strides up to 8 and padding up to 127";
  const ImageView& x = problem.x;
  if ((problem.batch > 1 && x.image <= 0) || (problem.rows.input > 1 && x.row <= 0) ||
      (problem.columns.input > 1 && x.column <= 0))
    return "it takes pixels at rising addresses";
  if (compute_capability(problem.device.index) != 90) return "it needs compute capability 9.0";
  return nullptr;
}

void run_static_sm90_int8_implicit_gemm(const StaticProblem& problem, const StaticBounds& bounds) {
  static_gemm::for_each_launch(problem, bounds, static_gemm::run);
}

}  // namespace qcore
