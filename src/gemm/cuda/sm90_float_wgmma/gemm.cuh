#pragma once

#include "gemm/cuda/exact_total.cuh"
#include "gemm/cuda/sm80_float_mma/decode.cuh"
#include "gemm/cuda/sm90_float_wgmma/stage.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/cuda/ptx_wgmma_half.cuh"

// The kernel and the choice among its instances.
namespace qcore::sm90_float_wgmma {

constexpr std::size_t kMaxSharedBytes = 227 << 10;
constexpr int kMaxStages = 8;
// Registers of a producing thread and of a computing one. Every thread of three warpgroups starts with 168, of five
// with 96; the sum over the warpgroups stays the same.
template <int kParts>
constexpr int kProducerRegisters = kParts == 4   ? 24
                                   : kParts == 2 ? 40
                                                 : 32;
template <int kParts>
constexpr int kConsumerRegisters = kParts == 4   ? 240
                                   : kParts == 2 ? 232
                                                 : 112;

// Totals of one group of warps on their way to another: of each thread eight times four.
struct Handover {
  float4 totals[8][kPanels * kWarpSize];
  ptx::Barrier full, empty;
};

template <int kBits, Offsets kOffsets, int kPromotions, int kParts>
struct Shape {
  using TileStage = Stage<kBits, kOffsets, kPromotions, kParts>;

  // Staging of each warp: 4 x 16 fp32 results, transposed before the store.
  static constexpr std::size_t kStagingBytes = sizeof(float) * kPanels * 64;
  static constexpr std::size_t kHandoverBytes = kGroups<kParts> > 1 ? sizeof(Handover) : 0;
  static constexpr std::size_t kRest = kStagingBytes + kHandoverBytes + sizeof(SpreadPart) + 1024 + 16 * kMaxStages;
  static constexpr int kFitting = static_cast<int>((kMaxSharedBytes - kRest) / sizeof(TileStage));
  static constexpr int kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  using TileRing = SmemPipeline<TileStage, kStages>;
  static constexpr std::size_t kSharedBytes =
      sizeof(TileRing) + alignof(TileRing) + kStagingBytes + kHandoverBytes + sizeof(SpreadPart);
  static_assert(kSharedBytes <= kMaxSharedBytes, "what a thread block of sm_90 may have");
  static_assert(kStages % (2 * kGroups<kParts>) == 0 || kGroups<kParts> == 1, "a stage is always the same group's");
};

// A warpgroup computes 64 columns n of a tile, a warp a panel of 16: row `group` of its part of a product is column
// 2*group, row group + 8 the one behind it. All rows of x are multiplied part after part, so that their products need
// few registers: while one warpgroup adds them to its totals, the other multiplies.
template <ptx::Half kHalf, int kBits, Offsets kOffsets, int kPromotions, int kParts>
class Consumer {
 public:
  using S = Shape<kBits, kOffsets, kPromotions, kParts>;
  using TileStage = typename S::TileStage;
  static constexpr int kStages = S::kStages, kRows = TileStage::kRows;

  __device__ Consumer(const Arguments& a, typename S::TileRing& ring, Tiles<kRows, true>& tiles, float* staging,
                      int warp)
      : a_(a),
        pipeline_(ring),
        tiles_(tiles),
        panel_(warp % kPanels),
        warpgroup_(warp / kWarpgroupWarps),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        group_(lane_ / 4),
        quad_(lane_ % 4),
        staging_(staging + panel_ * 64) {}

  __device__ void run() {
    if constexpr (kGroups<kParts> > 1)
      run_groups();
    else
      run_alone();
  }

 private:
  // The same in all lanes for the compiler too, or it would keep the ring's state in registers of lanes and copy every
  // operand of a product from there.
  __device__ static int same(int value) { return __shfl_sync(kAllLanes, value, 0); }

  // The second group leaves its totals to the first, which stores, and goes on to the next tile.
  __device__ __forceinline__ void run_groups() {
    const int group = warpgroup_ / (kPanels / kWarpgroupWarps);
    Handover& handover = *reinterpret_cast<Handover*>(staging_ - panel_ * 64 + kPanels * 64);
    unsigned parity = 0;
    int done = 0;  // steps
    PipelineState<kStages> state;
    for (; tiles_.valid(); tiles_.next()) {
#pragma unroll
      for (int i = 0; i < 32; ++i) y_[0][i] = 0.0f;
      const int first = tiles_.first_step(), last = tiles_.last_step();
      // Counted over all tiles, so that a stage of the ring is always the same group's: it waits for each of its
      // phases.
      const int own = (group + done) % kGroups<kParts>;
      PipelineState<kStages> at = state;
      at.skip(2 * own);
#pragma unroll 1
      for (int step = first + own; step < last; step += kGroups<kParts>) {
        multiply_step(at);
        at.skip(2);
      }
      state.skip(2 * (last - first));
      done += last - first;
      float4* mine = handover.totals[0] + panel_ * kWarpSize + lane_;
      if (group == 1) {
        ptx::barrier_wait(handover.empty, parity ^ 1u);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          mine[i * kPanels * kWarpSize] = {y_[0][4 * i], y_[0][4 * i + 1], y_[0][4 * i + 2], y_[0][4 * i + 3]};
        __syncwarp();
        if (lane_ == 0) ptx::barrier_arrive(handover.full, 0);
        parity ^= 1u;
        continue;
      }
      ptx::barrier_wait(handover.full, parity);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 four = mine[i * kPanels * kWarpSize];
        y_[0][4 * i] += four.x, y_[0][4 * i + 1] += four.y, y_[0][4 * i + 2] += four.z, y_[0][4 * i + 3] += four.w;
      }
      __syncwarp();
      if (lane_ == 0) ptx::barrier_arrive(handover.empty, 0);
      parity ^= 1u;
      finish_tile();
    }
  }
  // Multiplies a step, stage after stage; other warps work during its waits.
  __device__ __forceinline__ void multiply_step(PipelineState<kStages>& state) {
    constexpr int kOfStage = kPromotions > 1 ? kPromotions / 2 : 1, kUnitChunks = kStageChunks / kOfStage;
    constexpr bool kKeepsFirst =
        kNeedsSums<kOffsets> && kPromotions == 1;  // its sums of x are added with the second stage's
    const int first = state.slot;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileStage& stage = pipeline_.stages[state.slot];
      ptx::barrier_wait(pipeline_.full[state.slot], state.parity);
#pragma unroll
      for (int unit = 0; unit < kOfStage; ++unit) {
        const int promotion = kPromotions > 1 ? half * kOfStage + unit : 0;
        std::uint32_t weights[kUnitChunks][4];
        if (kPromotions > 1 || half == 0) set_shifts(promotion, stage, stage);
#pragma unroll
        for (int i = 0; i < kUnitChunks; ++i) decode_chunk(weights[i], stage, unit * kUnitChunks + i);
        ptx::product_fence();
#pragma unroll
        for (int i = 0; i < kUnitChunks; ++i)
          ptx::product_half<kHalf>(products_, weights[i],
                                   ptx::next_k(ptx::swizzled_rows(stage.x), (unit * kUnitChunks + i) * 32),
                                   i > 0 || (kPromotions == 1 && half > 0));
        ptx::product_commit();
        ptx::product_wait(products_);
        ptx::keep(weights);
        if (kPromotions > 1 || half > 0) promote(0, promotion, kKeepsFirst ? pipeline_.stages[first] : stage, stage);
      }
      __syncwarp();
      if (lane_ == 0) {
        if (kKeepsFirst && half > 0) ptx::barrier_arrive(pipeline_.empty[first], 0);
        if (!kKeepsFirst || half > 0) ptx::barrier_arrive(pipeline_.empty[state.slot], 0);
      }
      state.next();
    }
  }
  __device__ __forceinline__ void run_alone() {
    PipelineState<kStages> state;
    if (warpgroup_ == 1) ptx::let_other_group(warpgroup_);
    for (; tiles_.valid(); tiles_.next()) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 32; ++i) y_[part][i] = 0.0f;
      const int first = tiles_.first_step(), last = tiles_.last_step();
      if (first < last) {
        PipelineState<kStages> second = state;
        second.next();
        ptx::barrier_wait(pipeline_.full[state.slot], state.parity);
        ptx::barrier_wait(pipeline_.full[second.slot], second.parity);
        decode<kChunks>(weights_[0], pipeline_.stages[state.slot], pipeline_.stages[second.slot], 0);
      }
      if constexpr (kTwoSteps) {
#pragma unroll 1
        for (int left = last - first; left > 0; left -= 2) {
          multiply(state, left > 1, weights_[0], weights_[1]);
          if (left == 1) break;
          multiply(state, left > 2, weights_[1], weights_[0]);
        }
      } else {
#pragma unroll 1
        for (int step = first; step < last; ++step) {
          multiply(state, step + 1 < last, weights_[0], weights_[1]);
#pragma unroll
          for (int i = 0; i < kChunks; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) weights_[0][i][j] = weights_[1][i][j];
        }
      }
      finish_tile();
    }
  }

  using Decode = sm80_float_mma::Decoder<kHalf, kBits>;
  static constexpr int kStageChunks = kStageK / 16, kChunks = kStepK / 16;  // products of a part
  static constexpr int kPromotedChunks = kChunks / kPromotions, kUnits = kParts * kPromotions;
  static_assert(kChunks % kUnits == 0, "a step's decoding is shared out evenly");
  // Two steps in a turn of the loop, so that weights need not move from one array to the other. With sums of x and four
  // parts it would need more registers than there are.
  static constexpr bool kTwoSteps = kParts < 4 || !kNeedsSums<kOffsets>;

  // Multiplies a step, part after part, and releases its stages. Its weights are in registers; with each part a share
  // of the next step's come to others, if there are `more`. The loop must stay short: its instructions have to fit in a
  // small cache, and share the ports of the registers with the products.
  __device__ __forceinline__ void multiply(PipelineState<kStages>& state, bool more,
                                           std::uint32_t (&weights)[kChunks][4], std::uint32_t (&ahead)[kChunks][4]) {
    const int first = state.slot;
    state.next();
    const int second = state.slot;
    state.next();
    // Behind the last step that one's weights are decoded again: a branch between products and the end of their wait
    // would let the compiler give their operands' registers away.
    PipelineState<kStages> next = state;
    int next_first = first, next_second = second;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int part = unit / kPromotions, promotion = unit % kPromotions;
      if (unit == 0 && more) {
        ptx::barrier_wait(pipeline_.full[next.slot], next.parity);
        next_first = next.slot;
      }
      if (unit == kUnits / 2 && more) {  // the same unit, where there is one
        next.next();
        ptx::barrier_wait(pipeline_.full[next.slot], next.parity);
        next_second = next.slot;
      }
      ptx::wait_for_turn(warpgroup_);
      ptx::product_fence();
#pragma unroll
      for (int i = 0; i < kPromotedChunks; ++i) {
        const int chunk = promotion * kPromotedChunks + i;
        const TileStage& stage = pipeline_.stages[chunk < kStageChunks ? first : second];
        const ptx::SwizzledRows rows = ptx::next_k(ptx::swizzled_rows(stage.x), part * kPartRows * kStageK * 2);
        ptx::product_half<kHalf>(products_, weights[chunk], ptx::next_k(rows, chunk % kStageChunks * 32), i > 0);
      }
      ptx::product_commit();
      ptx::let_other_group(warpgroup_);
      decode<kChunks / kUnits>(ahead, pipeline_.stages[next_first], pipeline_.stages[next_second],
                               unit * (kChunks / kUnits));
      ptx::product_wait(products_);
      promote(part, promotion, pipeline_.stages[first], pipeline_.stages[second]);
    }
    ptx::keep(weights);
    __syncwarp();
    if (lane_ == 0) {
      ptx::barrier_arrive(pipeline_.empty[first], 0);
      ptx::barrier_arrive(pipeline_.empty[second], 0);
    }
  }

  // Operands a of some of a step's products. Of the two k that a register takes, side by side in the packed word, quads
  // differ in the nibble and in the pair of bytes.
  template <int kCount>
  __device__ __forceinline__ void decode(std::uint32_t (&weights)[kChunks][4], const TileStage& first,
                                         const TileStage& second, int begin) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int of_step = begin + i, chunk = of_step % kStageChunks;
      if (of_step % kPromotedChunks == 0) set_shifts(of_step / kPromotedChunks, first, second);
      decode_chunk(weights[of_step], of_step < kStageChunks ? first : second, chunk);
    }
  }
  __device__ __forceinline__ void decode_chunk(std::uint32_t (&to)[4], const TileStage& stage, int chunk) {
    const uint2* from = reinterpret_cast<const uint2*>(stage.weights[panel_]) + group_;  // [steps, 8 pairs of columns]
    if constexpr (kBits == 4) {
      // Both k pairs of a column in one word, before they are shifted and masked: fewer integer instructions.
      const uint2 low = from[2 * chunk * 8], high = from[(2 * chunk + 1) * 8];
      const unsigned pick = quad_ % 2 ? 0x7632u : 0x5410u;
      const int nibble = quad_ / 2 * 4;
      const std::uint32_t columns[2] = {ptx::pick_bytes(low.x, high.x, pick) >> nibble & 0x0f0f0f0fu,
                                        ptx::pick_bytes(low.y, high.y, pick) >> nibble & 0x0f0f0f0fu};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to[i] = Decode::pair_of_bytes(ptx::pick_bytes<0x4140>(columns[i], Decode::kUpperByte), shifts_[i]);
        to[2 + i] = Decode::pair_of_bytes(ptx::pick_bytes<0x4342>(columns[i], Decode::kUpperByte), shifts_[i]);
      }
    } else {
      const unsigned selector = quad_ % 2 ? 0x4342u : 0x4140u;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 both = from[(4 * chunk + 2 * half + quad_ / 2) * 8];
        to[2 * half] = Decode::pair(ptx::pick_bytes(both.x, 0, selector), shifts_[0]);
        to[2 * half + 1] = Decode::pair(ptx::pick_bytes(both.y, 0, selector), shifts_[1]);
      }
    }
  }
  __device__ __forceinline__ void set_shifts(int promotion, const TileStage& first, const TileStage& second) {
    constexpr std::uint32_t kZero = 1u << (kBits - 1);
    std::uint32_t zero[2] = {kZero, kZero};
    if constexpr (kHasOffsets<kOffsets>) {
      const float2 scales = column_pair(0, promotion, first, second),
                   offsets = column_pair(1, promotion, first, second);
      if constexpr (kNeedsSums<kOffsets>) {
        zero[0] = sm80_float_mma::nearest_zero<kBits>(scales.x, offsets.x);
        zero[1] = sm80_float_mma::nearest_zero<kBits>(scales.y, offsets.y);
      } else {
        zero[0] = sm80_float_mma::zero_point<kBits>(scales.x, offsets.x);
        zero[1] = sm80_float_mma::zero_point<kBits>(scales.y, offsets.y);
      }
    }
    shifts_[0] = Decode::shift(zero[0]), shifts_[1] = Decode::shift(zero[1]);
  }

  // Adds a part's products to its totals.
  __device__ __forceinline__ void promote(int part, int promotion, const TileStage& first, const TileStage& second) {
    const float2 scales = column_pair(0, promotion, first, second);
    float (&y)[32] = y_[part];
#pragma unroll
    for (int i = 0; i < 32; ++i) y[i] = numerics::fma_once(products_[i], i / 2 % 2 ? scales.y : scales.x, y[i]);
    if constexpr (!kNeedsSums<kOffsets>) return;
    float2 offsets = column_pair(1, promotion, first, second);
    offsets.x = sm80_float_mma::rest_of_offset<kBits>(scales.x, offsets.x);
    offsets.y = sm80_float_mma::rest_of_offset<kBits>(scales.y, offsets.y);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int row = part * kPartRows + 8 * j + 2 * quad_;
      const TileStage& stage = kPromotions > 1 && promotion >= kPromotions / 2 ? second : first;
      float2 sums = *reinterpret_cast<const float2*>(&stage.sums[promotion % TileStage::kSets][row]);
      if constexpr (kPromotions == 1) {
        const float2 more = *reinterpret_cast<const float2*>(&second.sums[0][row]);
        sums.x += more.x, sums.y += more.y;
      }
      y[4 * j] = numerics::fma_once(sums.x, offsets.x, y[4 * j]);
      y[4 * j + 1] = numerics::fma_once(sums.y, offsets.x, y[4 * j + 1]);
      y[4 * j + 2] = numerics::fma_once(sums.x, offsets.y, y[4 * j + 2]);
      y[4 * j + 3] = numerics::fma_once(sums.y, offsets.y, y[4 * j + 3]);
    }
  }

  // Parameters of the lane's two columns: scales, or offsets.
  __device__ __forceinline__ float2 column_pair(int array, int promotion, const TileStage& first,
                                                const TileStage& second) const {
    const TileStage& stage = kPromotions > 1 && promotion >= kPromotions / 2 ? second : first;
    return reinterpret_cast<const float2*>(stage.columns[promotion % TileStage::kSets][array][panel_])[group_];
  }

  // -- from totals to y

  __device__ std::int64_t first_row() const { return static_cast<std::int64_t>(tiles_.row()) * kRows; }
  __device__ std::int64_t first_column() const { return static_cast<std::int64_t>(tiles_.column()) * Tuning::kColumns; }

  __device__ void store() {
    const std::int64_t n = first_column() + 16 * panel_;
    if (n >= a_.w.n) return;
    const ActivationKind kind = a_.out.activation.kind;
    bool simple = a_.pairs && (kind == ActivationKind::none || kind == ActivationKind::clamp) && n + 16 <= a_.w.n;
    if (kHasOffsets<kOffsets> && simple) {
      // Totals that are not finite are made again.
      bool finite = true;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 32; ++i) finite = finite && numerics::is_finite(y_[part][i]);
      simple = same(warp_max(finite ? 0u : 1u)) == 0;
    }
    if (!simple) return store_any(n);
    float bias[2] = {};
    if (a_.out.bias)
      for (int i = 0; i < 2; ++i)
        bias[i] = load_float(a_.out.bias, a_.out.bias_dtype, (n + 2 * group_ + i) * a_.out.bias_stride);
    if (a_.out.y.dtype == DType::f32)
      store_pairs<DType::f32>(n + 2 * group_, bias);
    else if (a_.out.y.dtype == DType::f16)
      store_pairs<DType::f16>(n + 2 * group_, bias);
    else
      store_pairs<DType::bf16>(n + 2 * group_, bias);
  }

  // Eight lanes write 16 neighboring outputs of a row.
  template <DType dtype>
  __device__ __forceinline__ void store_pairs(std::int64_t n, const float (&bias)[2]) {
    finish(bias);
    const std::int64_t left = a_.rows - first_row() - 2 * quad_;
    const int rows_left = left < kRows ? static_cast<int>(left) : kRows;
    const std::int64_t stride = a_.out.y.strides[0] * (dtype == DType::f32 ? 4 : 2);
    char* to = static_cast<char*>(const_cast<void*>(a_.out.y.data)) +
               (a_.first_row + first_row() + 2 * quad_) * stride + n * (dtype == DType::f32 ? 4 : 2);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int row = part * kPartRows + 8 * (i / 2) + i % 2;
        const float low = y_[part][i / 2 * 4 + i % 2], high = y_[part][i / 2 * 4 + i % 2 + 2];
        if (row < rows_left) {
          if constexpr (dtype == DType::f32)
            *reinterpret_cast<float2*>(to) = {low, high};
          else
            *reinterpret_cast<std::uint32_t*>(to) = ptx::pack_pair<ptx::half_of(dtype)>(low, high);
        }
        to += i % 2 ? 7 * stride : stride;
      }
  }
  // Adds the bias of the lane's two columns to all totals, and clamps them.
  __device__ __forceinline__ void finish(const float (&bias)[2]) {
    if (a_.out.bias) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 32; ++i) y_[part][i] += bias[i / 2 % 2];
    }
    if (a_.out.activation.kind == ActivationKind::clamp) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 32; ++i)
          y_[part][i] = numerics::clamp_keep_nan(y_[part][i], a_.out.activation.lo, a_.out.activation.hi);
    }
  }

  // Through shared memory, four rows at a time. Totals move up in their registers, so that what finishes a value is
  // there once, and not for each register.
  __device__ void store_any(std::int64_t n) {
    auto& totals = reinterpret_cast<float (&)[kParts * 32]>(y_);
#pragma unroll 1
    for (int row = 0; row < kRows; row += 8) {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        if (quad_ / 2 == half) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
            reinterpret_cast<float2*>(staging_)[(2 * (quad_ % 2) + i) * 8 + group_] = {totals[i], totals[i + 2]};
        }
        __syncwarp();
#pragma unroll 1
        for (int at = lane_; at < 64; at += kWarpSize)
          store_total(first_row() + row + 4 * half + at / 16, n + at % 16, staging_[at]);
        __syncwarp();
      }
#pragma unroll
      for (int i = 0; i + 4 < kParts * 32; ++i) totals[i] = totals[i + 4];
    }
  }

  __device__ __forceinline__ void store_total(std::int64_t row, std::int64_t n, float total) const {
    if (row >= a_.rows || n >= a_.w.n) return;
    if (kHasOffsets<kOffsets> && !numerics::is_finite(total)) total = exact_total(row, n);
    store_epilogue(a_.out, a_.out.y.row_offset(a_.first_row + row), n, total);
  }
  __device__ float exact_total(std::int64_t row, std::int64_t n) const {
    const ExactRow x{reinterpret_cast<const uint4*>(a_.values + row * a_.row_stride), a_.dtype, 1, 0};
    return add_exact_tap(a_.w, x, n / PackedLayout::kPanelRows, n, 0.0f);
  }

  __device__ __forceinline__ void finish_tile() {
    auto& totals = reinterpret_cast<float (&)[kParts * 32]>(y_);
    if (const SpreadPart::Piece* piece = tiles_.piece()) {
      if (same(piece->last_step < tiles_.steps())) return leave_totals(a_.spread_totals, panel_, kPanels, totals);
      const int first = same(piece->first_leaving);
      for (int block = static_cast<int>(blockIdx.x); block-- > first;)
        take_totals<kParts * 32>(a_.spread_totals, block, panel_, kPanels, [&](int i, float4 four) {
          totals[4 * i] += four.x, totals[4 * i + 1] += four.y, totals[4 * i + 2] += four.z,
              totals[4 * i + 3] += four.w;
        });
    }
    store();
  }

  const Arguments& a_;
  typename S::TileRing& pipeline_;
  Tiles<kRows, true>& tiles_;
  int panel_, warpgroup_, lane_, group_, quad_;
  float* staging_;
  std::uint32_t weights_[2][kChunks][4];  // of this step, and of the next one
  typename Decode::Shift shifts_[2];
  float products_[32];
  float y_[kParts][32];
};

template <ptx::Half kHalf, int kBits, Offsets kOffsets, int kPromotions, int kParts>
__global__ void __launch_bounds__(kThreads<kParts>, 1) sm90_float_wgmma_kernel(const __grid_constant__ Arguments a) {
  using S = Shape<kBits, kOffsets, kPromotions, kParts>;
  using Fill = Producer<kBits, kOffsets, kPromotions, kParts, S::kStages>;
  ptx::let_next_kernel_start();
  auto& ring = S::TileRing::get(dynamic_shared());
  auto* staging = reinterpret_cast<float*>(&ring + 1);
  // The same in all lanes for the compiler too.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpSize, 0);
  if (threadIdx.x == kWarpSize) ptx::prefetch_map(a.words), ptx::prefetch_map(a.scales), ptx::prefetch_map(a.x);
  if (threadIdx.x == 0) {
    ring.init(1, kPanels);
    if constexpr (kGroups<kParts> > 1) {
      auto& handover = *reinterpret_cast<Handover*>(staging + kPanels * 64);
      ptx::barrier_init(handover.full, kPanels);
      ptx::barrier_init(handover.empty, kPanels);
    }
    ptx::barriers_are_ready();
  }
  auto& part = *reinterpret_cast<SpreadPart*>(reinterpret_cast<char*>(staging) + S::kStagingBytes + S::kHandoverBytes);
  if (a.spread && warp == 0)
    part.set(static_cast<int>(a.whole_tiles), static_cast<int>(a.tiles - a.whole_tiles),
             static_cast<int>((a.w.k + kStepK - 1) / kStepK), static_cast<int>(blockIdx.x),
             static_cast<int>(gridDim.x));
  __syncthreads();
  if (warp >= kConsumerWarps<kParts>) {
    ptx::fewer_registers<kProducerRegisters<kParts>>();
    Fill(a, ring, {a, part}, warp - kConsumerWarps<kParts>).run();
  } else {
    ptx::more_registers<kConsumerRegisters<kParts>>();
    Tiles<S::TileStage::kRows, true> tiles(a, part);
    Consumer<kHalf, kBits, kOffsets, kPromotions, kParts>(a, ring, tiles, staging, warp).run();
  }
}

template <ptx::Half kHalf, int kBits, Offsets kOffsets, int kPromotions, int kParts>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  using S = Shape<kBits, kOffsets, kPromotions, kParts>;
  const auto kernel = sm90_float_wgmma_kernel<kHalf, kBits, kOffsets, kPromotions, kParts>;
  Arguments launched = a;
  launched.tiles = launched.whole_tiles =
      static_cast<unsigned>(ceil_div(a.w.n, Tuning::kColumns) * ceil_div(a.rows, S::TileStage::kRows));
  LaunchShape shape{dim3(launched.tiles), dim3(kThreads<kParts>), S::kSharedBytes, dim3(1), !a.new_weight};
  if (a.spread > 0) {
    shape.grid = dim3(static_cast<unsigned>(a.spread));
    launched.whole_tiles = whole_tiles(launched.tiles, shape.grid.x);
  } else {
    const auto resident = static_cast<unsigned>(resident_clusters("sm90_float_wgmma", kernel, shape));
    if (launched.tiles > resident) shape.grid = dim3(resident);
  }
  launch("sm90_float_wgmma", kernel, shape, stream, launched);
}

template <ptx::Half kHalf, int kBits, Offsets kOffsets>
void launch_blocks(const Arguments& a, cudaStream_t stream) {
  switch (100 * (kStepK / promoted_k(a.w)) + a.parts) {
    case 101:
      return launch_kernel<kHalf, kBits, kOffsets, 1, 1>(a, stream);
    case 102:
      return launch_kernel<kHalf, kBits, kOffsets, 1, 2>(a, stream);
    case 104:
      return launch_kernel<kHalf, kBits, kOffsets, 1, 4>(a, stream);
    case 201:
      return launch_kernel<kHalf, kBits, kOffsets, 2, 1>(a, stream);
    case 204:
      return launch_kernel<kHalf, kBits, kOffsets, 2, 4>(a, stream);
    default:
      return launch_kernel<kHalf, kBits, kOffsets, 4, 2>(a, stream);
  }
}

template <ptx::Half kHalf, int kBits>
void launch_offsets(const Arguments& a, cudaStream_t stream) {
  if (!a.w.offsets) return launch_blocks<kHalf, kBits, Offsets::none>(a, stream);
  if constexpr (kBits == 4)
    if (a.has_zero_points) return launch_blocks<kHalf, kBits, Offsets::of_zero_points>(a, stream);
  launch_blocks<kHalf, kBits, Offsets::any>(a, stream);
}

template <ptx::Half kHalf>
void run(const Arguments& a, cudaStream_t stream) {
  a.w.bits == 8 ? launch_offsets<kHalf, 8>(a, stream) : launch_offsets<kHalf, 4>(a, stream);
}

}  // namespace qcore::sm90_float_wgmma
