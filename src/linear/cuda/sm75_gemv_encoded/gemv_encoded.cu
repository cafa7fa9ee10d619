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

constexpr int kFour = 4;  // neighboring blocks whose numbers are decoded, stored and loaded together

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
        slots_(a_.warps * a_.span_blocks) {}

  __device__ __forceinline__ void run() {
    copy_parameters(a_.scales);
    copy_parameters(a_.offsets);
    ptx::copy_commit();
    load(0);
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    if constexpr (kQuantizes) quantize();
    ptx::copy_wait<1>();  // the parameters
    __syncthreads();
    if (kQuantizes && a_.offsets.type != ParameterType::none) scale_sums();
    const int rounds = (a_.spans + a_.warps - 1) / a_.warps;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const int span = round * a_.warps + warp_;
      decode_parameters(round);  // while codes are on their way
      ptx::copy_wait<0>();
      __syncwarp();
      load(round + 1);
      if (span < a_.spans) multiply(round, span, stage(round));
      // The sums have two places: a warp that adds those of this round is waited for at the next round's end only.
      __syncthreads();
      accumulate(round);
    }
    ptx::copy_wait<0>();
    store();
  }

 private:
  __device__ __forceinline__ char* stage(int round) const {
    return memory_ + (round % kStages * a_.warps + warp_) * span_bytes(kBits);
  }
  // Where the four slots of a round from `first` on, a multiple of four, have their words of a line.
  __device__ __forceinline__ std::int32_t* line_of(int round, int first, int line) const {
    return reinterpret_cast<std::int32_t*>(memory_ + a_.shared.slots_at) +
           (((round & 1) * slots_ + first) * a_.shared.lines + line * kFour) * kColumns;
  }
  // The place of a column within a line, such that columns 0, 4, 8 .. 28 lie in different banks.
  __device__ __forceinline__ static int place_of(int column) { return column ^ column >> 3; }
  __device__ __forceinline__ std::int32_t& word_of(int round, int slot, int line, int column) const {
    return line_of(round, slot / kFour * kFour, line)[place_of(column) * kFour + slot % kFour];
  }
  template <class Four>
  __device__ __forceinline__ Four& four_of(int round, int first, int line) const {
    return reinterpret_cast<Four*>(line_of(round, first, line))[place_of(lane_)];
  }
  __device__ __forceinline__ float* x_scales(int row) const {
    return reinterpret_cast<float*>(memory_ + a_.shared.x_scales_at) + row * a_.quantizer.scale_stride;
  }
  __device__ __forceinline__ std::int32_t* code_sums() const {  // [P, rows]
    return reinterpret_cast<std::int32_t*>(memory_ + a_.shared.sums_at);
  }
  __device__ __forceinline__ float* scaled_sums(int row) const {
    return reinterpret_cast<float*>(memory_ + a_.shared.scaled_sums_at) + row * a_.quantizer.scale_stride;
  }
  __device__ __forceinline__ std::int8_t* x_codes() const {
    return reinterpret_cast<std::int8_t*>(memory_ + a_.warps * kStages * span_bytes(kBits));
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

  // The place of a unit of 16 bytes among those of a panel's span, so that 8 lanes that read vectors of a plane
  // together take different banks.
  static constexpr int kChunkUnits = 4 * kBits, kPanelUnits = kSpanChunks * kChunkUnits;
  __device__ __forceinline__ static int place_of_unit(int unit) {
    const int within = unit % kChunkUnits;
    return unit - within + (within ^ (within >> 2 & 2));
  }

  // Starts the copies of a span's codes, 8 vectors of a panel's planes for every 32 k: bytes that lie together.
  __device__ __forceinline__ void load(int round) {
    const int span = round * a_.warps + warp_;
    char* to = stage(round);
    if (span < a_.spans) {
      const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * 2 * a_.code_panel_bytes;
      const int bytes = static_cast<int>(a_.code_panel_bytes), at = span * (kPanelUnits * 16);
      const bool both = static_cast<std::int64_t>(blockIdx.x) * 2 + 1 < a_.panels;
      const std::uint8_t *own = a_.codes + first + at, *second = own + (both ? bytes : 0);
#pragma unroll
      for (int i = 0; i < kBits; ++i) {
        const int unit = lane_ + kWarpSize * i;
        const bool other = unit >= kPanelUnits;
        const int from = (other ? unit - kPanelUnits : unit) * 16;
        ptx::copy_async(to + ((other ? kPanelUnits : 0) + place_of_unit(from / 16)) * 16, (other ? second : own) + from,
                        at + from < bytes && (both || !other));
      }
    }
    ptx::copy_commit();
  }

  __device__ __forceinline__ void quantize() const {
    const RowQuantizer& x = a_.quantizer;
    auto* parts = reinterpret_cast<std::uint32_t*>(memory_ + a_.shared.slots_at);
    if (a_.block_spans == 1 && x.blocks > 1) {
      if (a_.block_size == 16)
        x.template run<16, true>(x_codes(), x_scales(0), code_sums(), parts);
      else if (a_.block_size == 32)
        x.template run<32, true>(x_codes(), x_scales(0), code_sums(), parts);
      else if (a_.block_size == 64)
        x.template run<64, true>(x_codes(), x_scales(0), code_sums(), parts);
      else
        x.template run<128, true>(x_codes(), x_scales(0), code_sums(), parts);
      return;
    }
    // Zeros behind the end: a code behind it may be any number of a codebook.
    const int tail = x.code_stride - x.k;
    for (int i = static_cast<int>(threadIdx.x); i < x.rows * tail; i += a_.warps * kWarpSize)
      x_codes()[i / tail * x.code_stride + x.k + i % tail] = 0;
    x.template run_one_block<true>(x_codes(), x_scales(0), code_sums(), parts);
  }

  // Eight codes of a row of x; zeros in the place of rows and blocks that do not exist.
  __device__ __forceinline__ uint2 codes_of(int row, int at) const {
    if constexpr (kQuantizes) {
      const int from = row < a_.rows ? row : a_.rows - 1;
      return *reinterpret_cast<const uint2*>(x_codes() + from * a_.quantizer.code_stride + at);
    } else {
      if (row >= a_.rows || at >= a_.row_codes) return uint2{0, 0};
      return *reinterpret_cast<const uint2*>(a_.x.codes + static_cast<std::int64_t>(row) * a_.row_codes + at);
    }
  }

  // scale * sum of the codes, of every block of x, which no thread reads before the first round has ended.
  __device__ __forceinline__ void scale_sums() const {
#pragma unroll 1
    for (int row = 0; row < a_.rows; ++row)
#pragma unroll 1
      for (int p = static_cast<int>(threadIdx.x); p < a_.blocks; p += a_.warps * kWarpSize)
        scaled_sums(row)[p] = x_scales(row)[p] * static_cast<float>(x_sum(p, row));
  }

  // Writes the scales and offsets of a round's blocks into their slots, those of a block of several spans into the slot
  // of its last one; a lane has a column.
  __device__ __forceinline__ void decode_parameters(int round) const {
#pragma unroll 1
    for (int first = warp_ * kFour; first < slots_; first += a_.warps * kFour) {
      const int from = round * slots_ + first;
      if (a_.block_spans == 1) {
        if (from < a_.blocks)
          decode_four(from, four_of<float4>(round, first, a_.rows), four_of<float4>(round, first, a_.rows + 1));
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < kFour; ++i) {
        const int span = from + i, p = span / a_.block_spans;
        if (span >= a_.spans || (span + 1 < a_.spans && (span + 1) % a_.block_spans)) continue;
        float4 scales, offsets;
        decode_four(p / kFour * kFour, scales, offsets);
        word_of(round, first + i, a_.rows, lane_) = one_of(scales, p % kFour);
        if (a_.offsets.type != ParameterType::none)
          word_of(round, first + i, a_.rows + 1, lane_) = one_of(offsets, p % kFour);
      }
    }
  }
  // The parameters of a lane's column.
  __device__ __forceinline__ void decode_four(int first, float4& scales, float4& offsets) const {
    const auto from = static_cast<unsigned>(first), blocks = static_cast<unsigned>(a_.blocks);
    const int lane = lane_ % static_cast<int>(PackedLayout::kPanelRows);
    float4 decoded{};
    visit_parameters<false>(a_.scales.type, [&](auto type) {
      const FourBlocks<type.value> four(a_.form, data_of(a_.scales), super_of(a_.scales), lane, from, blocks);
      decoded = four.scales(a_.form);
    });
    scales = decoded;
    visit_parameters<true>(a_.offsets.type, [&](auto type) {
      const FourBlocks<type.value> four(a_.form, data_of(a_.offsets), super_of(a_.offsets), lane, from, blocks);
      offsets = four.offsets(a_.form, decoded);
    });
  }
  // Those of the lane's panel, in shared memory or where they are.
  __device__ __forceinline__ const std::uint8_t* data_of(const Parameters& from) const {
    return from.data_at >= 0
               ? reinterpret_cast<const std::uint8_t*>(memory_ + from.data_at + own_panel() * from.panel_bytes)
               : from.data + existing_panel() * from.panel_bytes;
  }
  __device__ __forceinline__ const std::uint16_t* super_of(const Parameters& from) const {
    return from.data_at >= 0
               ? reinterpret_cast<const std::uint16_t*>(memory_ + from.super_at + own_panel() * from.super_bytes)
               : from.super + existing_panel() * (from.super_bytes / 2);
  }
  __device__ __forceinline__ int own_panel() const { return lane_ / static_cast<int>(PackedLayout::kPanelRows); }
  __device__ __forceinline__ std::int64_t existing_panel() const {
    const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * 2 + own_panel();
    return panel < a_.panels ? panel : 0;
  }
  __device__ __forceinline__ static std::int32_t one_of(const float4& four, int i) {
    const float value = i < 2 ? (i == 0 ? four.x : four.y) : (i == 2 ? four.z : four.w);
    return static_cast<std::int32_t>(numerics::float_bits(value));
  }

  __device__ __forceinline__ void multiply(int round, int span, const char* codes) const {
    switch (a_.span_blocks) {
      case 1:
        return multiply_blocks<1>(round, span, codes);
      case 2:
        return multiply_blocks<2>(round, span, codes);
      case 4:
        return multiply_blocks<4>(round, span, codes);
      default:
        return multiply_blocks<8>(round, span, codes);
    }
  }
  // Multiplies a span of so many blocks, or a part of one.
  template <int kBlocks>
  __device__ __forceinline__ void multiply_blocks(int round, int span, const char* codes) const {
    constexpr int kKept = kBlocks < kFour ? kBlocks : kFour;  // blocks whose sums are stored together
    constexpr int kChunks = kSpanChunks * kKept / kBlocks;    // that have them
    const char* units = codes + group_ / 4 * (kPanelUnits * 16);
#pragma unroll 1
    for (int first = 0; first < kSpanChunks; first += kChunks) {
      std::int32_t products[kKept][2][4] = {}, sums[kKept][2][4] = {};
      const int k = (span * kSpanChunks + first) * kChunk;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const PlaneWords<kBits, kCodebook> w(
            [&](int vector) {
              const int unit = 4 * vector + (group_ % 4 ^ (vector & 2));
              return *reinterpret_cast<const uint4*>(units + ((first + i) * kChunkUnits + unit) * 16);
            },
            quad_, a_.codebook);
        const uint2 x = codes_of(group_, k + i * kChunk + 8 * quad_);
        const int valid = a_.k - k - i * kChunk - 8 * quad_;
        if constexpr (kBlocks > kSpanChunks) {  // two blocks of 16 k
          add_products(w, x, valid, quad_ < 2 ? ~0u : 0u, products[2 * i], sums[2 * i]);
          add_products(w, x, valid, quad_ < 2 ? 0u : ~0u, products[2 * i + 1], sums[2 * i + 1]);
        } else {
          add_products(w, x, valid, ~0u, products[i * kBlocks / kSpanChunks], sums[i * kBlocks / kSpanChunks]);
        }
      }
      keep(round, warp_ * kBlocks + first * kBlocks / kSpanChunks, products, sums);
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

  // Writes the sums of neighboring slots, those of whole blocks as floats.
  template <int kSlots>
  __device__ __forceinline__ void keep(int round, int slot, const std::int32_t (&products)[kSlots][2][4],
                                       const std::int32_t (&sums)[kSlots][2][4]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * quad_ + j;
      if (row >= a_.rows) break;
      std::int32_t shifts[kSlots] = {};
      if (a_.zero != 0 && a_.block_spans == 1) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          const int p = round * slots_ + slot + s;
          shifts[s] = shift_of(p < a_.blocks ? p : a_.blocks - 1, row);
        }
      }
      std::int32_t words[4][kSlots];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          const std::int32_t product = products[s][i / 2][j + i % 2 * 2];
          words[i][s] = a_.block_spans == 1 ? shifted(product, shifts[s]) : product;
        }
      store_columns(round, slot, row, words);
    }
    if constexpr (!kQuantizes) {
      if (!a_.activation_offsets || quad_ != 0) return;
      std::int32_t words[4][kSlots];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int s = 0; s < kSlots; ++s) words[i][s] = sums[s][i / 2][i % 2 * 2];
      store_columns(round, slot, a_.shared.lines - 1, words);
    }
  }
  // Writes words of neighboring slots of columns 4 * group on.
  template <int kSlots>
  __device__ __forceinline__ void store_columns(int round, int slot, int line,
                                                const std::int32_t (&words)[4][kSlots]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::int32_t* to = &word_of(round, slot, line, 4 * group_ + i);
      if constexpr (kSlots == 4)
        *reinterpret_cast<int4*>(to) = int4{words[i][0], words[i][1], words[i][2], words[i][3]};
      else if constexpr (kSlots == 2)
        *reinterpret_cast<uint2*>(to) =
            uint2{static_cast<std::uint32_t>(words[i][0]), static_cast<std::uint32_t>(words[i][1])};
      else
        *to = words[i][0];
    }
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

  // Thread (row, lane) owns column `lane`.
  __device__ __forceinline__ void accumulate(int round) {
    if (warp_ >= a_.rows) return;
    const int left = (a_.block_spans == 1 ? a_.blocks : a_.spans) - round * slots_;
    const int used = left < slots_ ? left : slots_;
    if (a_.block_spans != 1)
      add_spans(round, used);
    else if (a_.offsets.type != ParameterType::none)
      add_blocks<true>(round, used);
    else
      add_blocks<false>(round, used);
  }

  // The terms that four neighboring blocks add to an output.
  struct Terms {
    float products[kFour], scales[kFour], offsets[kFour], x_scales[kFour], x_sums[kFour], x_offsets[kFour];
    std::int32_t stored_sums[kFour];  // of the weight's codes
  };
  // Where a row has them, and how far apart.
  struct TermsPlace {
    const float4 *products, *scales, *offsets, *stored_sums, *x_scales, *x_sums;
    const ActivationTerms* x;
    int step, rows, left;  // of slots, in float4; left: blocks from x on
  };
  template <class Four, class Value>
  __device__ __forceinline__ static void spread(const Four& from, Value (&to)[kFour]) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
  }
  __device__ __forceinline__ TermsPlace terms_of(int round) const {
    const int p = round * slots_, row = warp_;
    TermsPlace at{};
    at.step = a_.shared.lines * kColumns;
    at.products = &four_of<const float4>(round, 0, row);
    at.scales = &four_of<const float4>(round, 0, a_.rows);
    at.offsets = at.scales + kColumns;
    at.stored_sums = &four_of<const float4>(round, 0, a_.shared.lines - 1);
    if constexpr (kQuantizes) {
      at.x_scales = reinterpret_cast<const float4*>(x_scales(row) + p);
      at.x_sums = reinterpret_cast<const float4*>(scaled_sums(row) + p);
    } else {
      at.x = a_.x.terms + static_cast<std::int64_t>(p) * a_.rows + row;
      at.rows = a_.rows, at.left = a_.blocks - p;
    }
    return at;
  }
  // Loads four blocks' terms and goes on to the next ones.
  template <bool kOffsets>
  __device__ __forceinline__ void load_terms(TermsPlace& at, Terms& to) const {
    spread(*at.products, to.products), at.products += at.step;
    spread(*at.scales, to.scales), at.scales += at.step;
    if (kOffsets) spread(*at.offsets, to.offsets), at.offsets += at.step;
    if constexpr (kQuantizes) {
      spread(*at.x_scales++, to.x_scales);
      if (kOffsets) spread(*at.x_sums++, to.x_sums);
    } else {
      if (a_.activation_offsets) {
        spread(*reinterpret_cast<const int4*>(at.stored_sums), to.stored_sums);
        at.stored_sums += at.step;
      }
#pragma unroll
      for (int i = 0; i < kFour; ++i, at.x += at.rows)
        if (at.left-- > 0) set_x_terms(*at.x, i, to);
    }
  }
  __device__ __forceinline__ static void set_x_terms(const ActivationTerms& x, int i, Terms& to) {
    to.x_scales[i] = x.scale, to.x_sums[i] = x.scaled_sum, to.x_offsets[i] = x.offset;
  }

  // Four blocks' terms are loaded while those in front of them are added: a block takes two dependent additions then.
  template <bool kOffsets>
  __device__ __forceinline__ void add_blocks(int round, int used) {
    if (used <= 0) return;
    int p = round * slots_;
    TermsPlace at = terms_of(round);
    Terms even{}, odd{};
    load_terms<kOffsets>(at, even);
#pragma unroll 1
    for (; used >= 2 * kFour; used -= 2 * kFour, p += 2 * kFour) {
      load_terms<kOffsets>(at, odd);
      add_four<kOffsets>(even, p);
      if (used > 2 * kFour) load_terms<kOffsets>(at, even);
      add_four<kOffsets>(odd, p + kFour);
    }
    if (used >= kFour) {
      if (used > kFour) load_terms<kOffsets>(at, odd);
      add_four<kOffsets>(even, p);
      even = odd;
      used -= kFour, p += kFour;
    }
#pragma unroll
    for (int i = 0; i < kFour - 1; ++i)
      if (i < used) add<kOffsets>(even, i, p + i);
  }
  template <bool kOffsets>
  __device__ __forceinline__ void add_four(const Terms& terms, int p) {
#pragma unroll
    for (int i = 0; i < kFour; ++i) add<kOffsets>(terms, i, p + i);
  }

  // Adds the blocks that end in this round.
  __device__ __forceinline__ void add_spans(int round, int used) {
    const int row = warp_;
    for (int slot = 0; slot < used; ++slot) {
      const int span = round * slots_ + slot, p = span / a_.block_spans;
      open_ += static_cast<std::uint32_t>(word_of(round, slot, row, lane_));
      if (!kQuantizes && a_.activation_offsets) open_sum_ += word_of(round, slot, a_.shared.lines - 1, lane_);
      if (span + 1 < a_.spans && (span + 1) % a_.block_spans != 0) continue;
      const bool offsets = a_.offsets.type != ParameterType::none;
      Terms terms{};
      terms.products[0] = shifted_float(open_, shift_of(p, row));
      terms.scales[0] = float_of(round, slot, a_.rows);
      if (offsets) terms.offsets[0] = float_of(round, slot, a_.rows + 1);
      terms.stored_sums[0] = open_sum_;
      if constexpr (kQuantizes) {
        terms.x_scales[0] = x_scales(row)[p];
        if (offsets) terms.x_sums[0] = scaled_sums(row)[p];
      } else {
        set_x_terms(a_.x.terms[static_cast<std::int64_t>(p) * a_.rows + row], 0, terms);
      }
      offsets ? add<true>(terms, 0, p) : add<false>(terms, 0, p);
      open_ = 0, open_sum_ = 0;
    }
  }
  __device__ __forceinline__ float float_of(int round, int slot, int line) const {
    return numerics::bits_float(static_cast<std::uint32_t>(word_of(round, slot, line, lane_)));
  }

  template <bool kOffsets>
  __device__ __forceinline__ void add(const Terms& terms, int i, int p) {
    y_ = numerics::add_float_product(y_, terms.products[i], terms.x_scales[i], terms.scales[i]);
    if (kOffsets) y_ = numerics::add_weight_offset(y_, terms.x_sums[i], terms.offsets[i]);
    if constexpr (!kQuantizes)
      if (a_.activation_offsets)
        y_ = add_x_offset(p, terms.x_offsets[i], terms.stored_sums[i], terms.scales[i], terms.offsets[i], y_);
  }
  __device__ __forceinline__ float add_x_offset(int p, float x_offset, std::int32_t stored_sum, float scale,
                                                float offset, float y) const {
    const int left = a_.k - p * a_.block_size, length = left < a_.block_size ? left : a_.block_size;
    return numerics::add_activation_offset(
        y, x_offset, numerics::block_weight_sum(stored_sum - a_.zero * length, length, scale, offset));
  }
  __device__ __forceinline__ void store() const {
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane_;
    if (warp_ < a_.rows && n < a_.n) store_epilogue(a_.out, a_.y_at[warp_], n, y_);
  }

  const Arguments& a_;
  char* memory_;
  int warp_, lane_, group_, quad_, slots_;
  float y_ = 0.0f;
  // Sums of a block whose spans go on in the next round.
  std::uint32_t open_ = 0;
  std::int32_t open_sum_ = 0;
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
