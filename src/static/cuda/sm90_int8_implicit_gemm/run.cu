#include "gemm/cuda/smem_pipeline.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"
#include "static/cuda/implicit_gemm.cuh"

// Products of whole warpgroups, y^T = W x^T: weights come from registers, as they are packed, codes from shared memory,
// where one warpgroup gathers them from the pixels under the window while two others multiply. Thread blocks of a
// cluster share the k of a tile where there are few tiles: sums of integers are exact in any order.
namespace qcore::static_gemm {
namespace {

constexpr int kColumns = 128, kStageK = 128;  // channels of a tile, k of a stage
constexpr int kPanels = kColumns / static_cast<int>(PackedLayout::kPanelRows);
constexpr int kPanelBytes = kStageK * static_cast<int>(PackedLayout::kPanelRows);
constexpr int kConsumerWarps = kPanels, kProducerWarps = 4, kThreads = kWarpSize * (kConsumerWarps + kProducerWarps);
constexpr int kMaxCluster = 8, kMinStages = 2;  // of a thread block's share of k
constexpr int kMaxKernel = 16;                  // rows and columns of a window

template <int kRows>
struct alignas(1024) Stage {
  char codes[kRows * kStageK];
  char weights[kPanels][kPanelBytes];
};

template <int kRows>
struct Shared {
  static constexpr int kStages = 6;
  static constexpr int kStride = kColumns + 4;  // of a row of sums: rows that are written at once meet no bank twice
  using Ring = SmemPipeline<Stage<kRows>, kStages>;
  using Places = WindowPlaces<kRows>;

  static constexpr std::size_t kBytes = sizeof(Ring) + alignof(Ring) + sizeof(Places);
  static_assert(kBytes <= 227 << 10, "what a thread block of sm_90 may have");
  // The sums of a tile take the place of the stages when these are over.
  static_assert(sizeof(std::int32_t) * kRows * kStride <= sizeof(Ring::stages));
};

// The stages of k that a thread block of a cluster multiplies.
struct Share {
  int first, end;

  __device__ Share(int stages, int rank, int cluster)
      : first(static_cast<int>(static_cast<std::int64_t>(stages) * rank / cluster)),
        end(static_cast<int>(static_cast<std::int64_t>(stages) * (rank + 1) / cluster)) {}
};

// Sixteen times every code: where copies take padding from.
struct alignas(16) Padding {
  std::int8_t codes[256][16];

  constexpr Padding() : codes() {
    for (int code = 0; code < 256; ++code)
      for (std::int8_t& place : codes[code]) place = static_cast<std::int8_t>(code);
  }
};
__device__ const Padding padding{};

// A warp gathers a quarter of a tile's rows and has two panels of the weight copied. Each lane copies the same 16 bytes
// of a stage of every fourth of its warp's rows.
template <int kRows>
class Producer {
 public:
  using Ring = typename Shared<kRows>::Ring;
  // For each stage: the lanes' copies, and of each warp what it announces.
  static constexpr int kFullArrivals = kProducerWarps * (kWarpSize + 1);

  __device__ Producer(const Arguments& a, Ring& ring, int warp, int panel)
      : a_(a),
        ring_(ring),
        row_(warp * kWarpRows + static_cast<int>(threadIdx.x) % kWarpSize / kUnits),
        unit_(static_cast<int>(threadIdx.x) % kUnits),
        warp_(warp),
        panel_(panel + warp * kWarpPanels),
        run_(a.taps() * a.depth) {}

  __device__ void run(const WindowPlaces<kRows>& places, Share share) {
    set_rows(places);
    begin(share.first * kStageK + 16 * unit_);
    const std::int8_t* words = a_.words + panel_ * panel_bytes();
    const bool copies_weights = threadIdx.x % kWarpSize == 0;
    ptx::wait_for_earlier_kernels();
    PipelineState<Shared<kRows>::kStages> state;
#pragma unroll 1
    for (int stage = share.first; stage < share.end; ++stage, state.next()) {
      ptx::barrier_wait(ring_.empty[state.slot], state.parity ^ 1u);
      Stage<kRows>& to = ring_.stages[state.slot];
      ptx::Barrier& full = ring_.full[state.slot];
      if (copies_weights) copy_weights(to, words, stage, full);
      copy_codes(to);
      ptx::barrier_arrive_with_copies(full);
      advance();
    }
  }

 private:
  static constexpr int kUnits = kStageK / 16, kWarpRows = kRows / kProducerWarps,
                       kWarpPanels = kPanels / kProducerWarps;
  static constexpr int kLaneRows = kWarpSize / kUnits, kCopies = kWarpRows / kLaneRows;

  __device__ std::int64_t panel_bytes() const {
    return static_cast<std::int64_t>(run_) * static_cast<int>(PackedLayout::kPanelRows);
  }

  // Which of a window's rows and columns lie in the image, as bits, and where its first pixel would lie.
  __device__ void set_rows(const WindowPlaces<kRows>& places) {
    const DeviceWindow& window = a_.window;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const WindowOrigin& origin = places.origins.of[row_ + i * kLaneRows];
      taps_[i] = bits_inside(origin.row, 0) | bits_inside(origin.column, 1) << kMaxKernel;
      first_[i] = origin.image + origin.row * window.row + origin.column * window.column;
    }
  }
  __device__ std::uint32_t bits_inside(int at, int axis) const {
    std::uint32_t bits = 0;
    for (int tap = 0; tap < a_.window.kernel[axis]; ++tap, at += a_.window.dilation[axis])
      if (at >= 0 && at < a_.window.input[axis]) bits |= 1u << tap;
    return bits;
  }

  __device__ __forceinline__ void begin(int k) {
    const int tap = k / a_.depth, of_part = tap % (a_.window.kernel[0] * a_.window.kernel[1]);
    k_ = k - tap * a_.depth;
    left_ = run_ - k;
    tap_row_ = of_part / a_.window.kernel[1];
    tap_column_ = of_part - tap_row_ * a_.window.kernel[1];
    find_tap();
  }
  __device__ __forceinline__ void advance() {
    k_ += kStageK;
    left_ -= kStageK;
    if (k_ < a_.depth) return;
    do {
      k_ -= a_.depth;
      if (++tap_column_ < a_.window.kernel[1]) continue;
      tap_column_ = 0;
      if (++tap_row_ == a_.window.kernel[0]) tap_row_ = 0;
    } while (k_ >= a_.depth);
    find_tap();
  }
  __device__ __forceinline__ void find_tap() {
    tap_ = tap_row_ * a_.window.dilation[0] * a_.window.row + tap_column_ * a_.window.dilation[1] * a_.window.column;
  }

  // Behind the last tap there are zeros, since the weights are those of another panel or of none.
  __device__ __forceinline__ void copy_codes(Stage<kRows>& to) const {
    const bool exists = left_ > 0;
    const std::int8_t* outside = padding.codes[exists ? a_.zero & 0xffu : 0];
    const std::int8_t* from = a_.x + tap_ + k_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = row_ + i * kLaneRows;
      const bool inside = exists && (taps_[i] >> tap_row_ & taps_[i] >> (kMaxKernel + tap_column_) & 1u);
      ptx::copy_async(&to.codes[row * kStageK + (16 * unit_ ^ row % 8 * 16)], inside ? from + first_[i] : outside,
                      true);
    }
  }
  // Announces this warp's part of a stage's weights. What the last stage has no weights for is multiplied by zeros.
  __device__ __forceinline__ void copy_weights(Stage<kRows>& to, const std::int8_t* words, int stage,
                                               ptx::Barrier& full) const {
    const int left = run_ - stage * kStageK;
    const int bytes = (left < kStageK ? left : kStageK) * static_cast<int>(PackedLayout::kPanelRows);
    const std::int64_t panels_left = a_.panels - panel_;
    const int panels = panels_left < kWarpPanels ? (panels_left < 0 ? 0 : static_cast<int>(panels_left)) : kWarpPanels;
    ptx::barrier_expect(full, panels * bytes);
    for (int i = 0; i < panels; ++i)
      ptx::bulk_copy(to.weights[warp_ * kWarpPanels + i],
                     words + i * panel_bytes() + static_cast<std::int64_t>(stage) * kPanelBytes, bytes, full,
                     1u << ptx::cluster_rank());
  }

  const Arguments& a_;
  Ring& ring_;
  int row_, unit_, warp_, panel_;
  int run_;  // bytes of a result's pixels under all taps
  int k_ = 0, left_ = 0, tap_row_ = 0, tap_column_ = 0;
  std::int64_t tap_ = 0;         // from the window's first pixel to the tap's
  std::uint32_t taps_[kCopies];  // of each row: see set_rows()
  std::int64_t first_[kCopies];
};

// A warpgroup multiplies 64 channels of a tile, a warp a panel: row `group` of its part of a product is channel
// 2*group, row group + 8 the one behind it.
template <bool kSignedX, int kRows>
class Consumer {
 public:
  using Ring = typename Shared<kRows>::Ring;

  __device__ Consumer(Ring& ring, int warp)
      : ring_(ring),
        panel_(warp),
        group_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        quad_(static_cast<int>(threadIdx.x) % 4),
        rank_(ptx::cluster_rank()) {}

  __device__ void run(Share share) {
    int left = share.end - share.first;
    Weights weights[2];
    bool add = false;
    wait_for(state_);
    weights[0].load(ring_.stages[state_.slot].weights[panel_], group_, quad_);
    for (; left > 2; left -= 2, add = true) {
      add_stage(weights[0], weights[1], add);
      add_stage(weights[1], weights[0], true);
    }
    if (left == 1) return add_last_stage(weights[0], add);
    add_stage(weights[0], weights[1], add);
    add_last_stage(weights[1], true);
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

  // Waits for the next stage before the products begin: a branch until they end would free their operands' registers.
  __device__ __forceinline__ void add_stage(const Weights& weights, Weights& next, bool add) {
    const auto here = state_;
    state_.next();
    wait_for(state_);
    issue(weights, ring_.stages[here.slot], add);
    next.load(ring_.stages[state_.slot].weights[panel_], group_, quad_);
    ptx::product_wait(sums_);
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) ptx::barrier_arrive(ring_.empty[here.slot], rank_);
  }
  __device__ __forceinline__ void add_last_stage(const Weights& weights, bool add) {
    issue(weights, ring_.stages[state_.slot], add);
    ptx::product_wait(sums_);
  }
  __device__ __forceinline__ void wait_for(const PipelineState<Shared<kRows>::kStages>& state) {
    ptx::barrier_wait(ring_.full[state.slot], state.parity);
    ptx::products_see_copies();
  }
  __device__ __forceinline__ void issue(const Weights& weights, const Stage<kRows>& stage, bool add) {
    const ptx::SwizzledRows codes = ptx::swizzled_rows(stage.codes);
    ptx::product_fence();
#pragma unroll
    for (int i = 0; i < kStageK / 32; ++i)
      ptx::product<kRows, kSignedX>(sums_, weights.a[i], ptx::next_k(codes, 32 * i), i > 0 || add);
    ptx::product_commit();
  }

  Ring& ring_;
  PipelineState<Shared<kRows>::kStages> state_;
  int panel_, group_, quad_, rank_;
  std::int32_t sums_[kRows / 2];
};

// Stores the codes of this thread block's part of the results: a warp has all channels of a result, several results at
// a time. `sum` returns the sums of four channels of a result.
template <int kRows, class Sum>
__device__ __forceinline__ void store_codes(const Arguments& a, const WindowPlaces<kRows>& places,
                                            const RequantizedChannels& channels, std::int64_t n, int first_row,
                                            int begin, int end, Sum&& sum) {
  constexpr int kAtOnce = 4, kWarps = kThreads / kWarpSize;
  if (n >= a.n) return;
  auto* y = static_cast<std::uint8_t*>(const_cast<void*>(a.y.data)) + n * a.y.channel;
  const int last = a.results - first_row < end ? a.results - first_row : end;
  for (int row = begin + static_cast<int>(threadIdx.x) / kWarpSize; row < last; row += kAtOnce * kWarps) {
    uint4 sums[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (row + i * kWarps < last) sums[i] = sum(row + i * kWarps);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (row + i * kWarps < last) {
        const std::uint32_t four[4] = {sums[i].x, sums[i].y, sums[i].z, sums[i].w};
        channels.store(y + places.y[row + i * kWarps], a.y.channel, channels.codes(four));
      }
  }
}

template <bool kSignedX, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    static_wgmma_kernel(const __grid_constant__ Arguments a, const int cluster) {
  using S = Shared<kRows>;
  auto& ring = S::Ring::get(dynamic_shared());
  auto& places = *reinterpret_cast<typename S::Places*>(&ring + 1);
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpSize, 0);
  ptx::let_next_kernel_start();
  if (threadIdx.x == 0) ring.init(Producer<kRows>::kFullArrivals, kConsumerWarps);
  ptx::barriers_are_ready();
  const int tile = static_cast<int>(blockIdx.x) / cluster, first_row = static_cast<int>(blockIdx.y) * kRows;
  places.set(a, first_row);
  const std::int64_t n = static_cast<std::int64_t>(tile) * kColumns + static_cast<int>(threadIdx.x) % kWarpSize * 4;
  const RequantizedChannels channels(a.requantization, n, a.n);  // asked for before they are needed
  const int rank = ptx::cluster_rank();
  const Share share((a.taps() * a.depth + kStageK - 1) / kStageK, rank, cluster);
  auto* sums = reinterpret_cast<std::int32_t*>(ring.stages);
  if (warp >= kConsumerWarps) {
    Producer<kRows>(a, ring, warp - kConsumerWarps, tile * kPanels).run(places, share);
    __syncthreads();
  } else {
    Consumer<kSignedX, kRows> consumer(ring, warp);
    consumer.run(share);
    __syncthreads();
    consumer.store_sums(sums);
  }
  const std::int32_t* from = sums + threadIdx.x % kWarpSize * 4;
  const auto own = [&](int row) { return *reinterpret_cast<const uint4*>(from + row * S::kStride); };
  if (cluster == 1) {
    __syncthreads();
    return store_codes(a, places, channels, n, first_row, 0, kRows, own);
  }
  // Each thread block adds up the sums of all for its part of the results.
  ptx::cluster_sync();
  const int share_rows = kRows / cluster;
  store_codes(a, places, channels, n, first_row, rank * share_rows, (rank + 1) * share_rows, [&](int row) {
    uint4 parts[kMaxCluster];
#pragma unroll
    for (int i = 0; i < kMaxCluster; ++i)
      if (i < cluster) parts[i] = ptx::cluster_load(from + row * S::kStride, i);
    uint4 sum = parts[0];
#pragma unroll
    for (int i = 1; i < kMaxCluster; ++i)
      if (i < cluster) sum.x += parts[i].x, sum.y += parts[i].y, sum.z += parts[i].z, sum.w += parts[i].w;
    return sum;
  });
  ptx::cluster_sync();  // no thread block's memory goes away while others read it
}

template <bool kSignedX, int kRows>
void launch_kernel(const Arguments& a, unsigned cluster, cudaStream_t stream) {
  launch("static_wgmma", static_wgmma_kernel<kSignedX, kRows>,
         {dim3(static_cast<unsigned>(ceil_div(a.n, kColumns)) * cluster,
               static_cast<unsigned>(ceil_div(a.results, kRows))),
          dim3(kThreads), Shared<kRows>::kBytes, dim3(cluster), true},
         stream, a, static_cast<int>(cluster));
}

template <int kRows>
void launch_rows(const Arguments& a, unsigned cluster, cudaStream_t stream) {
  a.x_signed ? launch_kernel<true, kRows>(a, cluster, stream) : launch_kernel<false, kRows>(a, cluster, stream);
}

// Tiles of 128 results where there are enough of them, else of 64, whose k is shared while there are too few.
void run(const Arguments& a, cudaStream_t stream) {
  const std::int64_t columns = ceil_div(a.n, kColumns);
  if (columns * ceil_div(a.results, 128) >= a.enough_tiles) return launch_rows<128>(a, 1, stream);
  const std::int64_t tiles = columns * ceil_div(a.results, 64), stages = ceil_div(a.taps() * a.depth, kStageK);
  unsigned cluster = 1;
  while (cluster < kMaxCluster && tiles * cluster < a.enough_tiles && stages >= 2 * kMinStages * cluster) cluster *= 2;
  launch_rows<64>(a, cluster, stream);
}

}  // namespace
}  // namespace qcore::static_gemm

namespace qcore {

const char* static_sm90_int8_implicit_gemm_unsupported_reason(const StaticProblem& problem) {
  if (const char* reason = static_sm75_int8_implicit_gemm_unsupported_reason(problem)) return reason;
  const StaticLayer& layer = *problem.layer;
  if (layer.window.groups != 1) return "it takes one group";
  if (layer.layout.k == 0 || layer.layout.k % static_gemm::kChunk || layer.layout.taps == 0)
    return "it takes multiples of 32 channels";
  if (problem.rows.kernel > static_gemm::kMaxKernel || problem.columns.kernel > static_gemm::kMaxKernel)
    return "it takes windows of up to 16 by 16";
  if (compute_capability(problem.device.index) != 90) return "it needs compute capability 9.0";
  return nullptr;
}

void run_static_sm90_int8_implicit_gemm(const StaticProblem& problem, const StaticBounds& bounds) {
  static_gemm::for_each_launch(problem, bounds, static_gemm::run);
}

}  // namespace qcore
