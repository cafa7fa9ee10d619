#include "gemm/cuda/encoded/plane_words.cuh"
#include "linear/cuda/sm75_gemv_encoded/gemv_encoded.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore::gemv_encoded {
namespace {

// kQuantizes: x comes as floats, or as codes in an order of its own.
template <int kBits, bool kCodebook, bool kQuantizes>
class Gemv {
 public:
  __device__ __forceinline__ explicit Gemv(const Arguments& arguments)
      : a_(arguments),
        memory_(dynamic_shared()),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        group_(lane_ / 4),
        quad_(lane_ % 4),
        slots_(a_.warps * a_.span_blocks),
        slot_words_(a_.shared.lines * kColumns) {}

  __device__ __forceinline__ void run() {
    copy_parameters(a_.scales);
    copy_parameters(a_.offsets);
    ptx::copy_commit();
#pragma unroll 1
    for (int round = 0; round < a_.stages - 1; ++round) load(round);
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    if constexpr (kQuantizes) quantize();
    wait_but_for(a_.stages - 1);  // the parameters
    __syncthreads();
    const int rounds = (a_.spans + a_.warps - 1) / a_.warps;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const int span = round * a_.warps + warp_;
      std::int32_t* slots = slot(round, warp_ * a_.span_blocks);
      if (span < a_.spans) decode_parameters(span, slots);  // while codes are on their way
      wait_but_for(a_.stages - 2);
      __syncwarp();
      load(round + a_.stages - 1);
      if (span < a_.spans) multiply(span, slots, stage(slot_));
      slot_ = next(slot_);
      // The sums have two places: a warp that adds those of this round is waited for at the next round's end only.
      __syncthreads();
      accumulate(round);
    }
    ptx::copy_wait<0>();
    store();
  }

 private:
  static constexpr int kMostStages = most_stages(kBits);
  static constexpr int kMinWarps = 4, kOwnRows = kMaxRows / kMinWarps;
  static constexpr int kBatch = 8;  // blocks whose terms are loaded together

  // Waits for all groups of copies but the last `groups`.
  __device__ __forceinline__ void wait_but_for(int groups) const {
    static_assert(kMostStages <= 4, "three groups");
    if (groups == 0)
      ptx::copy_wait<0>();
    else if (groups == 1)
      ptx::copy_wait<1>();
    else if (groups == 2)
      ptx::copy_wait<2>();
    else
      ptx::copy_wait<3>();
  }

  __device__ __forceinline__ int next(int slot) const { return slot + 1 == a_.stages ? 0 : slot + 1; }
  __device__ __forceinline__ char* stage(int slot) const {
    return memory_ + (slot * a_.warps + warp_) * span_bytes(kBits);
  }
  // [lines][32] words.
  __device__ __forceinline__ std::int32_t* slot(int round, int index) const {
    return reinterpret_cast<std::int32_t*>(memory_ + a_.shared.slots_at) + ((round & 1) * slots_ + index) * slot_words_;
  }
  __device__ __forceinline__ float* x_scales(int row) const {
    return reinterpret_cast<float*>(memory_ + a_.shared.x_scales_at) + row * a_.quantizer.scale_stride;
  }
  __device__ __forceinline__ std::int32_t* code_sums() const {  // [P, rows]
    return reinterpret_cast<std::int32_t*>(memory_ + a_.shared.sums_at);
  }
  __device__ __forceinline__ std::int8_t* x_codes() const {
    return reinterpret_cast<std::int8_t*>(memory_ + a_.warps * a_.stages * span_bytes(kBits));
  }

  // 16 bytes at a time, of the panels that exist.
  __device__ __forceinline__ void copy_parameters(const Parameters& parameters) const {
    if (parameters.data_at < 0) return;
    copy_panels(parameters.data, parameters.panel_bytes, parameters.data_at);
    copy_panels(reinterpret_cast<const std::uint8_t*>(parameters.super), parameters.super_bytes, parameters.super_at);
  }
  __device__ __forceinline__ void copy_panels(const std::uint8_t* data, int panel_bytes, int at) const {
#pragma unroll 1
    for (int panel = 0; panel < 2; ++panel) {
      const std::int64_t from = static_cast<std::int64_t>(blockIdx.x) * 2 + panel;
      const bool exists = from < a_.panels;
      const std::uint8_t* bytes = data + (exists ? from : 0) * panel_bytes;
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x) * 16; i < panel_bytes; i += a_.warps * kWarpSize * 16)
        ptx::copy_async(memory_ + at + panel * panel_bytes + i, bytes + i, exists);
    }
  }

  // The places of 16 bytes within a span, so that 8 lanes that read vectors of a plane together take different banks.
  __device__ __forceinline__ static int swizzled(int unit) { return unit ^ (unit >> 2 & 2); }

  // Starts the copies of a span's codes, 8 vectors of a panel's planes for every 32 k: bytes that lie together.
  __device__ __forceinline__ void load(int round) {
    const int span = round * a_.warps + warp_;
    constexpr int kPanelUnits = span_bytes(kBits) / 2 / 16;
    char* to = stage(load_slot_);
    load_slot_ = next(load_slot_);
    if (span < a_.spans) {
      const std::int64_t first = static_cast<std::int64_t>(span) * (kPanelUnits * 16);
#pragma unroll
      for (int i = 0; i < kBits; ++i) {
        const int unit = lane_ + kWarpSize * i, panel_unit = unit % kPanelUnits;
        const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * 2 + unit / kPanelUnits;
        const std::int64_t at = first + panel_unit * 16;
        const bool valid = panel < a_.panels && at < a_.code_panel_bytes;
        ptx::copy_async(to + swizzled(unit) * 16, a_.codes + (valid ? panel * a_.code_panel_bytes + at : 0), valid);
      }
    }
    ptx::copy_commit();
  }

  __device__ __forceinline__ void quantize() const {
    const RowQuantizer& x = a_.quantizer;
    auto* parts = reinterpret_cast<std::uint32_t*>(memory_ + a_.shared.slots_at);
    if (a_.block_spans == 1 && x.blocks > 1) {
      if (a_.block_size == 16)
        x.template run<16>(x_codes(), x_scales(0), code_sums(), parts);
      else if (a_.block_size == 32)
        x.template run<32>(x_codes(), x_scales(0), code_sums(), parts);
      else if (a_.block_size == 64)
        x.template run<64>(x_codes(), x_scales(0), code_sums(), parts);
      else
        x.template run<128>(x_codes(), x_scales(0), code_sums(), parts);
      return;
    }
    // Zeros behind the end: a code behind it may be any number of a codebook.
    const int tail = x.code_stride - x.k;
    for (int i = static_cast<int>(threadIdx.x); i < x.rows * tail; i += a_.warps * kWarpSize)
      x_codes()[i / tail * x.code_stride + x.k + i % tail] = 0;
    x.run_one_block(x_codes(), x_scales(0), code_sums(), parts);
  }

  // Eight codes of a row of x; zeros in the place of rows and blocks that do not exist.
  __device__ __forceinline__ uint2 codes_of(int row, int chunk) const {
    const int at = chunk * kChunk + 8 * quad_;
    if constexpr (kQuantizes) {
      const int from = row < a_.rows ? row : a_.rows - 1;
      return *reinterpret_cast<const uint2*>(x_codes() + from * a_.quantizer.code_stride + at);
    } else {
      if (row >= a_.rows || at >= a_.row_codes) return uint2{0, 0};
      return *reinterpret_cast<const uint2*>(a_.x.codes + static_cast<std::int64_t>(row) * a_.row_codes + at);
    }
  }

  // The parameters of a lane's column, in shared memory or where they are.
  template <ParameterType kType>
  __device__ __forceinline__ ParameterColumn<kType> column_of(const Parameters& from) const {
    constexpr int kRows = static_cast<int>(PackedLayout::kPanelRows);
    const int own = lane_ / kRows, lane = lane_ % kRows;
    if (from.data_at >= 0)
      return {reinterpret_cast<const std::uint8_t*>(memory_ + from.data_at) + own * from.panel_bytes,
              reinterpret_cast<const std::uint16_t*>(memory_ + from.super_at + own * from.super_bytes), lane};
    const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * 2 + own, there = panel < a_.panels ? panel : 0;
    return {from.data + there * from.panel_bytes, from.super + there * (from.super_bytes / 2), lane};
  }

  // Writes the scales and offsets of a span's blocks into their slots; a lane has a column.
  __device__ __forceinline__ void decode_parameters(int span, std::int32_t* slots) const {
    const int first = a_.block_spans == 1 ? span * a_.span_blocks : span / a_.block_spans;
    const int left = a_.blocks - first, count = left < a_.span_blocks ? left : a_.span_blocks;
    auto* to = reinterpret_cast<float*>(slots + a_.rows * kColumns + lane_);
    visit_parameters(a_.scales.type, [&](auto type) {
      const auto column = column_of<type.value>(a_.scales);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        float scale[1];
        column.scales(a_.form, first + i, scale);
        to[i * slot_words_] = scale[0];
      }
    });
    visit_parameters(a_.offsets.type, [&](auto type) {
      const auto column = column_of<type.value>(a_.offsets);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const float scale[1] = {to[i * slot_words_]};
        float offset[1];
        column.offsets(a_.form, first + i, scale, offset);
        to[i * slot_words_ + kColumns] = offset[0];
      }
    });
  }

  __device__ __forceinline__ void multiply(int span, std::int32_t* slots, const char* codes) const {
    std::int32_t products[2][4] = {}, sums[2][4] = {};
    int kept = 0, chunks_left = a_.span_blocks > kSpanChunks ? 0 : kSpanChunks / a_.span_blocks;
    const int slot_chunks = chunks_left;
    // Not unrolled: a launch begins with empty instruction caches and runs this a few times only.
#pragma unroll 1
    for (int i = 0; i < kSpanChunks; ++i) {
      const int chunk = span * kSpanChunks + i;
      const PlaneWords<kBits, kCodebook> w(
          [&](int vector) {
            const int unit = group_ / 4 * (span_bytes(kBits) / 32) + i * (4 * kBits) + 4 * vector + group_ % 4;
            return *reinterpret_cast<const uint4*>(codes + swizzled(unit) * 16);
          },
          quad_, a_.codebook);
      const uint2 x = codes_of(group_, chunk);
      const int valid = a_.k - chunk * kChunk - 8 * quad_;
      if (slot_chunks > 0) {
        add_products(w, x, valid, ~0u, products, sums);
        if (--chunks_left == 0) {
          keep(span * a_.span_blocks + kept, slots + kept * slot_words_, products, sums);
          ++kept, chunks_left = slot_chunks;
        }
      } else {  // two blocks of 16 k
        add_products(w, x, valid, quad_ < 2 ? ~0u : 0u, products, sums);
        keep(span * a_.span_blocks + 2 * i, slots + 2 * i * slot_words_, products, sums);
        add_products(w, x, valid, quad_ < 2 ? 0u : ~0u, products, sums);
        keep(span * a_.span_blocks + 2 * i + 1, slots + (2 * i + 1) * slot_words_, products, sums);
      }
    }
  }

  // `mask` is all bits, or none for a lane whose 8 k are of another block.
  __device__ __forceinline__ void add_products(const PlaneWords<kBits, kCodebook>& w, uint2 x, int valid,
                                               std::uint32_t mask, std::int32_t (&products)[2][4],
                                               std::int32_t (&sums)[2][4]) const {
    const std::uint32_t pair[2] = {x.x & mask, x.y & mask};
    ptx::mma_u8s8(products[0], w.first, pair, products[0]);
    ptx::mma_u8s8(products[1], w.second, pair, products[1]);
    if (kQuantizes || !a_.activation_offsets) return;
    // Products with rows of ones, of the codes that exist.
    const std::uint32_t ones[2] = {ones_of(valid) & mask, ones_of(valid - 4) & mask};
    ptx::mma_u8s8(sums[0], w.first, ones, sums[0]);
    ptx::mma_u8s8(sums[1], w.second, ones, sums[1]);
  }
  __device__ __forceinline__ static std::uint32_t ones_of(int count) {
    return count >= 4 ? 0x01010101u : count <= 0 ? 0u : 0x01010101u & ((1u << (8 * count)) - 1);
  }

  // Writes the sums of a block, as floats if they are all of it, and starts anew.
  __device__ __forceinline__ void keep(int p, std::int32_t* to, std::int32_t (&products)[2][4],
                                       std::int32_t (&sums)[2][4]) const {
    const bool whole = a_.block_spans == 1;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * quad_ + j;
      int4 kept{products[0][j], products[0][j + 2], products[1][j], products[1][j + 2]};
      products[0][j] = products[0][j + 2] = products[1][j] = products[1][j + 2] = 0;
      if (row >= a_.rows) continue;
      if (whole && p < a_.blocks) {
        const std::int32_t shift = shift_of(p, row);
        kept = int4{shifted(kept.x, shift), shifted(kept.y, shift), shifted(kept.z, shift), shifted(kept.w, shift)};
      }
      *reinterpret_cast<int4*>(to + row * kColumns + 4 * group_) = kept;
    }
    if (kQuantizes || !a_.activation_offsets) return;
    if (quad_ == 0)
      *reinterpret_cast<int4*>(to + (a_.shared.lines - 1) * kColumns + 4 * group_) =
          int4{sums[0][0], sums[0][2], sums[1][0], sums[1][2]};
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[half][i] = 0;
  }

  // The sum of the codes of a row's block.
  __device__ __forceinline__ std::int32_t x_sum(int p, int row) const {
    return kQuantizes ? code_sums()[p * a_.rows + row] : a_.x.terms[static_cast<std::int64_t>(p) * a_.rows + row].shift;
  }
  // Products are those of stored codes, q + zero. Adding this makes them products of q, modulo 2^32.
  __device__ __forceinline__ std::int32_t shift_of(int p, int row) const {
    return static_cast<std::int32_t>(0u -
                                     static_cast<std::uint32_t>(a_.zero) * static_cast<std::uint32_t>(x_sum(p, row)));
  }
  __device__ __forceinline__ static float shifted_float(std::uint32_t product, std::int32_t shift) {
    return static_cast<float>(static_cast<std::int32_t>(product + static_cast<std::uint32_t>(shift)));
  }
  __device__ __forceinline__ static std::int32_t shifted(std::int32_t product, std::int32_t shift) {
    return static_cast<std::int32_t>(numerics::float_bits(shifted_float(static_cast<std::uint32_t>(product), shift)));
  }

  // Thread (warp, lane) owns column `lane` of rows warp + warps * i.
  __device__ __forceinline__ void accumulate(int round) {
    const int left = (a_.block_spans == 1 ? a_.blocks : a_.spans) - round * slots_;
    const int used = left < slots_ ? left : slots_;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = warp_ + a_.warps * i;
      if (row >= a_.rows) break;
      const std::int32_t* from = slot(round, 0) + lane_;
      if (a_.block_spans == 1) {
        int s = 0;
#pragma unroll 1
        for (; s + kBatch <= used; s += kBatch) add_batch(round * slots_ + s, row, from + s * slot_words_, y_[i]);
#pragma unroll 1
        for (; s < used; ++s) y_[i] = add_slot(round * slots_ + s, row, from + s * slot_words_, y_[i]);
        continue;
      }
      for (int s = 0; s < used; ++s, from += slot_words_) {
        const int span = round * slots_ + s, p = span / a_.block_spans;
        open_[i] += static_cast<std::uint32_t>(from[row * kColumns]);
        if (!kQuantizes && a_.activation_offsets) open_sum_[i] += from[(a_.shared.lines - 1) * kColumns];
        if (span + 1 < a_.spans && (span + 1) % a_.block_spans != 0) continue;
        y_[i] = add(p, row, shifted_float(open_[i], shift_of(p, row)), open_sum_[i], from, y_[i]);
        open_[i] = 0, open_sum_[i] = 0;
      }
    }
  }

  // Adds so many blocks, each of them one slot. All loads come first: a block takes two dependent additions then, not
  // the time of a load as well.
  __device__ __forceinline__ void add_batch(int p, int row, const std::int32_t* from, float& y) const {
    if (a_.offsets.type != ParameterType::none)
      add_batch<true>(p, row, from, y);
    else
      add_batch<false>(p, row, from, y);
  }
  template <bool kOffsets>
  __device__ __forceinline__ void add_batch(int p, int row, const std::int32_t* from, float& y) const {
    float products[kBatch], scales[kBatch], offsets[kBatch], x_scale[kBatch], x_sums[kBatch], x_offsets[kBatch];
    std::int32_t stored[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int32_t* slot = from + i * slot_words_;
      products[i] = numerics::bits_float(static_cast<std::uint32_t>(slot[row * kColumns]));
      scales[i] = numerics::bits_float(static_cast<std::uint32_t>(slot[a_.rows * kColumns]));
      offsets[i] = kOffsets ? numerics::bits_float(static_cast<std::uint32_t>(slot[(a_.rows + 1) * kColumns])) : 0.0f;
      if constexpr (kQuantizes) {
        x_scale[i] = x_scales(row)[p + i];
        x_sums[i] = kOffsets ? static_cast<float>(x_sum(p + i, row)) : 0.0f;
      } else {
        const ActivationTerms x = a_.x.terms[static_cast<std::int64_t>(p + i) * a_.rows + row];
        x_scale[i] = x.scale, x_sums[i] = x.scaled_sum, x_offsets[i] = x.offset;
        stored[i] = a_.activation_offsets ? slot[(a_.shared.lines - 1) * kColumns] : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      y = numerics::add_float_product(y, products[i], x_scale[i], scales[i]);
      if (kOffsets) y = numerics::add_weight_offset(y, kQuantizes ? x_scale[i] * x_sums[i] : x_sums[i], offsets[i]);
      if constexpr (!kQuantizes)
        if (a_.activation_offsets) y = add_x_offset(p + i, x_offsets[i], stored[i], scales[i], offsets[i], y);
    }
  }

  // Adds a block that is one slot.
  __device__ __forceinline__ float add_slot(int p, int row, const std::int32_t* from, float y) const {
    const std::int32_t stored_sum = !kQuantizes && a_.activation_offsets ? from[(a_.shared.lines - 1) * kColumns] : 0;
    return add(p, row, numerics::bits_float(static_cast<std::uint32_t>(from[row * kColumns])), stored_sum, from, y);
  }
  // Adds a block; `from` is its slot, `stored_sum` that of the weight's stored codes, if it is needed.
  __device__ __forceinline__ float add(int p, int row, float product, std::int32_t stored_sum, const std::int32_t* from,
                                       float y) const {
    const float scale = numerics::bits_float(static_cast<std::uint32_t>(from[a_.rows * kColumns]));
    const bool offsets = a_.offsets.type != ParameterType::none;
    const float offset =
        offsets ? numerics::bits_float(static_cast<std::uint32_t>(from[(a_.rows + 1) * kColumns])) : 0.0f;
    if constexpr (kQuantizes) {
      const float x_scale = x_scales(row)[p];
      y = numerics::add_float_product(y, product, x_scale, scale);
      if (offsets) y = numerics::add_weight_offset(y, x_scale * static_cast<float>(x_sum(p, row)), offset);
    } else {
      const ActivationTerms& x = a_.x.terms[static_cast<std::int64_t>(p) * a_.rows + row];
      y = numerics::add_float_product(y, product, x.scale, scale);
      if (offsets) y = numerics::add_weight_offset(y, x.scaled_sum, offset);
      if (a_.activation_offsets) y = add_x_offset(p, x.offset, stored_sum, scale, offset, y);
    }
    return y;
  }
  __device__ __forceinline__ float add_x_offset(int p, float x_offset, std::int32_t stored_sum, float scale,
                                                float offset, float y) const {
    const int left = a_.k - p * a_.block_size, length = left < a_.block_size ? left : a_.block_size;
    return numerics::add_activation_offset(
        y, x_offset, numerics::block_weight_sum(stored_sum - a_.zero * length, length, scale, offset));
  }
  __device__ __forceinline__ void store() const {
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane_;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = warp_ + a_.warps * i;
      if (row < a_.rows && n < a_.n) store_epilogue(a_.out, a_.y_at[row], n, y_[i]);
    }
  }

  const Arguments& a_;
  char* memory_;
  int warp_, lane_, group_, quad_, slots_, slot_words_;
  int slot_ = 0, load_slot_ = 0;  // the stages of the round that is multiplied and of the one that is loaded
  float y_[kOwnRows] = {};
  // Sums of a block whose spans go on in the next round.
  std::uint32_t open_[kOwnRows] = {};
  std::int32_t open_sum_[kOwnRows] = {};
};

template <int kBits, bool kCodebook, bool kQuantizes>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 1) gemv_encoded_kernel(const __grid_constant__ Arguments a) {
  Gemv<kBits, kCodebook, kQuantizes>(a).run();
}

template <int kBits, bool kCodebook>
void launch_format(const Arguments& a, bool quantizes, const LaunchShape& shape, cudaStream_t stream) {
  const auto kernel =
      quantizes ? gemv_encoded_kernel<kBits, kCodebook, true> : gemv_encoded_kernel<kBits, kCodebook, false>;
  launch("gemv_encoded", kernel, shape, stream, a);
}

}  // namespace

void run(const Arguments& a, int bits, bool codebook, bool quantizes, bool overlap, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.panels, 2))),
                    dim3(static_cast<unsigned>(a.warps * kWarpSize)), static_cast<std::size_t>(a.shared.bytes)};
  shape.overlap = overlap;
  if (codebook) return launch_format<4, true>(a, quantizes, shape, stream);
  switch (bits) {
    case 2:
      return launch_format<2, false>(a, quantizes, shape, stream);
    case 3:
      return launch_format<3, false>(a, quantizes, shape, stream);
    case 4:
      return launch_format<4, false>(a, quantizes, shape, stream);
    case 5:
      return launch_format<5, false>(a, quantizes, shape, stream);
    case 6:
      return launch_format<6, false>(a, quantizes, shape, stream);
    default:
      return launch_format<8, false>(a, quantizes, shape, stream);
  }
}

}  // namespace qcore::gemv_encoded
