#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats/element.h"
#include "formats/packed_weight.h"
#include "gemm/dequantize/vtable.h"
#include "runtime/memory.h"

namespace qcore {

// Computes values of a weight's rows by the kernels of an instruction set, and stores them in an array of any dtype
// whose neighbors along K lie `stride` elements apart.
class RowDequantizer {
 public:
  // Of `size` elements, all in all.
  struct Out {
    void* data;
    DType dtype;
    std::int64_t stride, size;
  };

  RowDequantizer(const PackedWeight& weight, const Out& out, const DequantizeKernels& kernels)
      : weight_(weight),
        layout_(weight.layout),
        out_(out),
        kernels_(kernels),
        reader_(weight),
        places_(layout_),
        past_cache_(kernels.fence && out.size * item_size(out.dtype) >= kPastCacheBytes) {}

  // Returns how many blocks of a row are computed together.
  std::int64_t blocks_together() const { return std::max<std::int64_t>(1, kRunElements / layout_.block_size); }

  // Memory of a task for as many blocks of a row.
  struct Buffers {
    float *scales, *offsets;
    std::uint8_t* codes;  // of encoded weights, which are expanded
  };
  Buffers buffers(std::int64_t blocks, Scratch& scratch) const {
    return {scratch.take<float>(blocks), scratch.take<float>(blocks),
            weight_.encoded ? scratch.take<std::uint8_t>(blocks * expanded_bytes()) : nullptr};
  }

  // Computes the blocks [first, end) of a row; place(k, tap) is where values go, in elements.
  template <class Place>
  void run(std::int64_t row, std::int64_t first, std::int64_t end, const Buffers& buffers, const Place& place) const {
    bool shifts = false;  // whether there are codes that 8 bits may not hold
    const std::int64_t parameter = places_.parameter(row, first);
    for (std::int64_t p = first, i = 0; p < end; ++p, ++i) {
      if (weight_.encoded) {
        const PackedWeight::BlockDecoder decoder = weight_.decoder(row, p);
        shifts = shifts || decoder.shift != 0;
        buffers.scales[i] = decoder.scale, buffers.offsets[i] = decoder.offset;
      } else {
        const std::int64_t at = parameter + i * PackedLayout::kPanelRows;
        buffers.scales[i] = weight_.scales[at];
        buffers.offsets[i] = weight_.offsets ? weight_.offsets[at] : 0.0f;
      }
    }
    DequantizeRun run{};
    run.block_size = layout_.block_size;
    run.count = (end - first - 1) * layout_.block_size + layout_.block_length(end - 1);
    run.scales = buffers.scales, run.offsets = buffers.offsets;
    run.past_cache = past_cache_ && !shifts;
    for (std::int64_t tap = 0; tap < layout_.taps; ++tap) {
      if (weight_.encoded) {
        expand(row, first, end, buffers.codes);
        run.bits = 8;
        run.codes = buffers.codes, run.word_bytes = kWordBytes, run.block_bytes = expanded_bytes();
      } else {
        run.bits = layout_.bits;
        run.codes = weight_.codes + places_.first(row, first, tap), run.word_bytes = PackedLayout::kStepBytes;
        run.block_bytes = layout_.block_first_step(1) * PackedLayout::kStepBytes;
      }
      store(run, place(layout_.block_begin(first), tap));
      if (shifts) store_shifted(row, first, end, tap, place);
    }
  }

  // Called by a thread after its rows.
  void finish() const {
    if (past_cache_) kernels_.fence();
  }

 private:
  // Values of a row that are computed together. The rows of a panel share the lines of their codes, which stay in the
  // first-level cache from row to row.
  static constexpr std::int64_t kRunElements = 1024;
  // Beyond this the result does not stay in the caches, and is written past them.
  static constexpr std::int64_t kPastCacheBytes = 8 << 20;
  static constexpr std::int64_t kWordBytes = 4;

  // Returns how many bytes the expanded codes of a block take, one for each code.
  std::int64_t expanded_bytes() const { return round_up(layout_.block_length(0), kWordBytes); }

  // Writes the codes of encoded blocks as words of 8 bits, four at a time.
  void expand(std::int64_t row, std::int64_t first, std::int64_t end, std::uint8_t* codes) const {
    switch (weight_.encoded->encoding.bits) {
      case 2:
        return expand<2>(row, first, end, codes);
      case 3:
        return expand<3>(row, first, end, codes);
      case 4:
        return expand<4>(row, first, end, codes);
      case 5:
        return expand<5>(row, first, end, codes);
      case 6:
        return expand<6>(row, first, end, codes);
      default:
        return expand<8>(row, first, end, codes);
    }
  }

  template <int kBits>
  void expand(std::int64_t row, std::int64_t first, std::int64_t end, std::uint8_t* codes) const {
    const EncodedWeight& encoded = *weight_.encoded;
    const WeightEncoding& encoding = encoded.encoding;
    const Planes planes{kBits, encoded.code_planes().lanes};
    const std::uint8_t* const data = weight_.codes + row / PackedLayout::kPanelRows * encoded.code_panel_bytes(layout_);
    const std::int64_t lane = kWordBytes * (row % PackedLayout::kPanelRows);
    const std::int64_t begin = layout_.block_first_step(first);
    const std::int64_t stop = layout_.block_first_step(end - 1) + layout_.block_steps(end - 1);
    const auto each = [&](const auto& stored) {
      std::uint8_t* to = codes;
      for (std::int64_t step = begin; step < stop; ++step, to += kWordBytes) {
        const std::uint32_t word = stored(planes.get<std::uint32_t>(data, step, lane));
        std::memcpy(to, &word, sizeof word);
      }
    };
    if (encoding.has_codebook) {
      std::uint8_t table[16];
      for (int u = 0; u < 16; ++u) table[u] = static_cast<std::uint8_t>(encoding.codebook[u] + layout_.zero_code());
      each([&](std::uint32_t numbers) {
        std::uint32_t word = 0;
        for (int byte = 0; byte < 32; byte += 8) word |= std::uint32_t{table[numbers >> byte & 15u]} << byte;
        return word;
      });
    } else {
      // Adds in each byte: the upper bits without a carry.
      const std::uint32_t zero = static_cast<std::uint8_t>(layout_.zero_code() - encoding.zero) * 0x01010101u;
      constexpr std::uint32_t kLower = 0x7f7f7f7f;
      each(
          [=](std::uint32_t numbers) { return ((numbers & kLower) + (zero & kLower)) ^ ((numbers ^ zero) & ~kLower); });
    }
  }

  void store(const DequantizeRun& run, std::int64_t at) const {
    if (out_.stride != 1) {
      Scratch scratch;
      float* values = scratch.take<float>(run.count);
      DequantizeRun kept = run;
      kept.past_cache = false;
      kernels_.to_float(kept, values);
      for (std::int64_t i = 0; i < run.count; ++i) store_float(out_.data, out_.dtype, at + i * out_.stride, values[i]);
    } else if (out_.dtype == DType::f32) {
      kernels_.to_float(run, static_cast<float*>(out_.data) + at);
    } else {
      const auto convert = out_.dtype == DType::f16 ? kernels_.to_half : kernels_.to_bfloat;
      convert(run, static_cast<std::uint16_t*>(out_.data) + at);
    }
  }

  template <class Place>
  void store_shifted(std::int64_t row, std::int64_t first, std::int64_t end, std::int64_t tap,
                     const Place& place) const {
    Scratch scratch;
    std::int8_t* codes = scratch.take<std::int8_t>(layout_.block_length(first));
    for (std::int64_t p = first; p < end; ++p) {
      const PackedWeight::BlockDecoder decoder = weight_.decoder(row, p);
      if (!decoder.shift) continue;
      reader_.read(row, p, tap, codes);
      const std::int64_t at = place(layout_.block_begin(p), tap);
      for (std::int64_t i = 0; i < layout_.block_length(p); ++i)
        store_float(out_.data, out_.dtype, at + i * out_.stride, decoder.value(codes[i]));
    }
  }

  const PackedWeight& weight_;
  const PackedLayout& layout_;
  const Out out_;
  const DequantizeKernels& kernels_;
  BlockReader reader_;
  BlockPlaces places_;
  bool past_cache_;
};

}  // namespace qcore
