#include <algorithm>
#include <cstring>
#include <vector>

#include "formats/packed_block.h"
#include "formats/packed_weight.h"
#include "qcore/quantize.h"
#include "quantize/encoded_weight.h"
#include "quantize/pack_weight.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

// A weight's one block of memory: viewed, made from memory that exists, cut and stacked by rows.
namespace qcore {
namespace {

constexpr std::int64_t kRows = PackedLayout::kPanelRows;
constexpr std::int64_t kWord = PackedLayout::kStepBytes / kRows;  // bytes of one row in a step

StorageLayout storage_layout(const StorageFormat& format, const PackedLayout& layout) {
  const auto size = [](DType dtype) { return dtype == DType::f16 ? 2 : 4; };
  return StorageLayout(layout, size(format.scale_dtype),
                       format.scheme == Scheme::asymmetric ? size(format.offset_dtype) : 0);
}

void check_format(const StorageFormat& format) {
  QCORE_CHECK_VALUE(format.rank == 2 || format.rank == 4, "from_storage: shape has ", format.rank,
                    " dimensions, expected [N, K] or [Co, Ci, Kh, Kw]");
  check_weight_size("from_storage", "shape", format.rank, format.shape, format.block_size);
  if (format.encoding) {
    QCORE_CHECK_VALUE(format.rank == 2, "from_storage: shape has ", format.rank,
                      " dimensions, expected [N, K] of an encoded weight");
    return format.encoding->check("from_storage");
  }
  QCORE_CHECK_VALUE(format.bits == 4 || format.bits == 8, "from_storage: bits is ", format.bits, ", expected 4 or 8");
  const auto is_parameter = [](DType dtype) { return dtype == DType::f32 || dtype == DType::f16; };
  QCORE_CHECK_VALUE(is_parameter(format.scale_dtype), "from_storage: scale_dtype is ", name(format.scale_dtype),
                    ", expected float32 or float16");
  QCORE_CHECK_VALUE(is_parameter(format.offset_dtype), "from_storage: offset_dtype is ", name(format.offset_dtype),
                    ", expected float32 or float16");
}

bool has_half_parameters(const PackedWeight& weight) {
  return weight.scales.half && (!weight.offsets || weight.offsets.half);
}

// An empty weight like another one, on the CPU, with `rows` rows.
std::shared_ptr<PackedWeight> allocate_like(const PackedWeight& like, std::int64_t rows, bool half_parameters) {
  TensorView shaped_like;
  shaped_like.rank = like.rank;
  std::copy(like.shape, like.shape + like.rank, shaped_like.shape);
  shaped_like.shape[0] = rows;
  return allocate_weight("quantize", "weight", shaped_like, like.layout.bits, like.layout.block_size, like.scheme,
                         half_parameters);
}

// Copies parameters of rows [begin, begin + count) to row `at` and below. `to` is fp32 unless `from` is fp16 too.
void copy_parameters(const PackedLayout& layout, const BlockParameters& from, std::int64_t begin, std::int64_t count,
                     const BlockParameters& to, std::int64_t at) {
  const std::int64_t blocks = layout.blocks(), source = layout.parameter_index(begin, 0),
                     target = layout.parameter_index(at, 0);
  void* data = const_cast<void*>(to.data);
  if (to.half == from.half && count == kRows && begin % kRows == 0 && at % kRows == 0) {
    const std::int64_t size = to.item_size();
    std::memcpy(static_cast<char*>(data) + target * size, static_cast<const char*>(from.data) + source * size,
                static_cast<std::size_t>(blocks * kRows * size));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t p = 0; p < blocks; ++p) {
      const std::int64_t read = layout.parameter_index(begin + i, p), written = layout.parameter_index(at + i, p);
      if (to.half)
        static_cast<std::uint16_t*>(data)[written] = static_cast<const std::uint16_t*>(from.data)[read];
      else
        static_cast<float*>(data)[written] = from[read];
    }
}

// Copies rows [begin, begin + count) of `from` to row `at` and below of `to`.
void copy_rows(const PackedWeight& from, std::int64_t begin, std::int64_t count, const PackedWeight& to,
               std::int64_t at) {
  const PackedLayout &a = from.layout, &b = to.layout;
  const std::int64_t steps = a.taps * a.steps();
  auto* codes = const_cast<std::uint8_t*>(to.codes);
  const bool in_step = begin % kRows == 0 && at % kRows == 0;
  parallel_for(ceil_div(count, kRows), [&](std::int64_t task) {
    const std::int64_t first = task * kRows, last = std::min(count, first + kRows);
    copy_parameters(a, from.scales, begin + first, last - first, to.scales, at + first);
    if (from.offsets) copy_parameters(a, from.offsets, begin + first, last - first, to.offsets, at + first);
    if (in_step && last - first == kRows) {  // a whole panel lies in one piece
      std::memcpy(codes + (at + first) / kRows * b.panel_bytes(),
                  from.codes + (begin + first) / kRows * a.panel_bytes(), static_cast<std::size_t>(a.panel_bytes()));
      return;
    }
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t source = begin + i, target = at + i;
      const std::uint8_t* read = from.codes + source / kRows * a.panel_bytes() + kWord * (source % kRows);
      std::uint8_t* written = codes + target / kRows * b.panel_bytes() + kWord * (target % kRows);
      for (std::int64_t step = 0; step < steps; ++step)
        std::memcpy(written + step * PackedLayout::kStepBytes, read + step * PackedLayout::kStepBytes, kWord);
    }
  });
}

// Two codes in each byte, the first one low, to the four bytes of a step: the first four codes low, the others high.
std::uint32_t word_of_pairs(std::uint32_t pairs) {
  std::uint64_t codes = pairs;
  codes = (codes | codes << 16) & 0x0000ffff0000ffffu;
  codes = (codes | codes << 8) & 0x00ff00ff00ff00ffu;
  codes = (codes | codes << 4) & 0x0f0f0f0f0f0f0f0fu;
  return static_cast<std::uint32_t>(codes | codes >> 28);
}

// Packs one row of a linear weight whose blocks are whole steps.
void pack_pairs(const std::uint8_t* pairs, std::int64_t k, std::uint8_t* first) {
  constexpr std::int64_t kBytes = 4;  // of a step of 8 codes
  constexpr std::uint32_t kZeroCodes = 0x88888888u;
  const std::int64_t bytes = ceil_div(k, 2);
  for (std::int64_t at = 0; at < bytes; at += kBytes, first += PackedLayout::kStepBytes) {
    std::uint32_t word = kZeroCodes;
    const std::int64_t count = std::min(kBytes, bytes - at);
    std::memcpy(&word, pairs + at, static_cast<std::size_t>(count));
    if (at + kBytes >= bytes && k % 2) {  // an odd row ends with a zero half, where padding has code 0
      const int shift = static_cast<int>(8 * (count - 1) + 4);
      word = (word & ~(15u << shift)) | 8u << shift;
    }
    word = word_of_pairs(word);
    std::memcpy(first, &word, sizeof word);
  }
}

}  // namespace

TensorView QuantizedTensor::storage() const {
  return TensorView(packed_->memory.get(), DType::u8, {packed_->storage_bytes()}, device());
}

QuantizedTensor QuantizedTensor::from_storage(const TensorView& storage, std::shared_ptr<const void> owner,
                                              const StorageFormat& format) {
  check_format(format);
  check_dtype("from_storage", "storage", storage, DType::u8);
  const bool on_cpu = storage.device.type == DeviceType::cpu;
  QCORE_CHECK_VALUE(on_cpu || format.encoding ||
                        (format.scale_dtype == DType::f32 &&
                         (format.scheme == Scheme::symmetric || format.offset_dtype == DType::f32)),
                    "from_storage: scale_dtype or offset_dtype is float16 on ", name(storage.device),
                    ", expected float32 there");
  auto packed = std::make_shared<PackedWeight>();
  const std::int64_t taps = format.rank == 4 ? format.shape[2] * format.shape[3] : 1;
  packed->layout =
      PackedLayout(format.shape[0], format.shape[1], taps, format.block_size, format.encoding ? 8 : format.bits);
  packed->rank = format.rank;
  std::copy(format.shape, format.shape + format.rank, packed->shape);
  packed->scheme = format.scheme;
  packed->device = storage.device;
  const std::int64_t bytes = format.encoding
                                 ? EncodedWeight(*format.encoding, packed->layout).parts(packed->layout).bytes
                                 : storage_layout(format, packed->layout).bytes;
  check_shape("from_storage", "storage", storage, 1, &bytes);
  QCORE_CHECK_VALUE(bytes <= 1 || storage.strides[0] == 1, "from_storage: storage has a stride of ", storage.strides[0],
                    ", expected contiguous memory");
  QCORE_CHECK_VALUE(reinterpret_cast<std::uintptr_t>(storage.data) % kAlignment == 0,
                    "from_storage: storage begins at an address that is no multiple of 64, expected one: copy it");
  std::shared_ptr<const void> memory(std::move(owner), storage.data);
  if (format.encoding) {
    packed->scheme = format.encoding->offsets == ParameterType::none ? Scheme::symmetric : Scheme::asymmetric;
    packed->set_encoded_memory(*format.encoding, std::move(memory));
  } else {
    packed->set_memory(std::move(memory), format.scale_dtype == DType::f16, format.offset_dtype == DType::f16);
  }
  return QuantizedTensor(std::move(packed));
}

QuantizedTensor QuantizedTensor::concatenate(const QuantizedTensor* weights, std::int64_t count) {
  QCORE_CHECK_VALUE(count > 0, "concatenate: weights is empty, expected at least one");
  const PackedWeight& first = weights[0].packed();
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const PackedWeight& weight = weights[i].packed();
    const bool agrees =
        weight.rank == first.rank && std::equal(first.shape + 1, first.shape + first.rank, weight.shape + 1) &&
        weight.layout.bits == first.layout.bits && weight.layout.block_size == first.layout.block_size &&
        weight.scheme == first.scheme && weight.encoded.has_value() == first.encoded.has_value() &&
        (!first.encoded || weight.encoded->encoding == first.encoded->encoding);
    const auto described = [](const PackedWeight& w) {
      TensorView shape;
      shape.rank = w.rank;
      std::copy(w.shape, w.shape + w.rank, shape.shape);
      return message(shape_string(shape), " with bits ", w.encoded ? w.encoded->encoding.bits : w.layout.bits,
                     ", block_size ", w.layout.block_size, ", ",
                     w.scheme == Scheme::symmetric ? "symmetric" : "asymmetric", w.encoded ? ", encoded" : "");
    };
    QCORE_CHECK_VALUE(agrees, "concatenate: weights[", i, "] is ", described(weight),
                      ", expected what weights[0] is but for its rows: ", described(first));
    rows += weight.layout.n;
  }
  if (first.encoded) {
    auto packed = allocate_encoded(first.encoded->encoding, rows, first.layout.k, first.layout.block_size);
    for (std::int64_t i = 0, at = 0; i < count; at += weights[i++].rows())
      copy_encoded_rows(weights[i].to(kCpu).packed(), 0, weights[i].rows(), *packed, at);
    return QuantizedTensor(std::move(packed)).to(first.device);
  }
  const bool half_parameters = std::all_of(
      weights, weights + count, [](const QuantizedTensor& weight) { return has_half_parameters(weight.packed()); });
  auto packed = allocate_like(first, rows, half_parameters);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const QuantizedTensor here = weights[i].to(kCpu);
    copy_rows(here.packed(), 0, here.rows(), *packed, at);
    at += here.rows();
  }
  finish_weight(*packed);
  return QuantizedTensor(std::move(packed)).to(first.device);
}

QuantizedTensor QuantizedTensor::slice_rows(std::int64_t begin, std::int64_t end) const {
  QCORE_CHECK_VALUE(0 <= begin && begin <= end && end <= rows(), "slice_rows: begin is ", begin, " and end ", end,
                    ", expected 0 <= begin <= end <= N = ", rows());
  if (packed_->encoded) {
    auto packed = allocate_encoded(packed_->encoded->encoding, end - begin, features(), block_size());
    copy_encoded_rows(to(kCpu).packed(), begin, end - begin, *packed, 0);
    return QuantizedTensor(std::move(packed)).to(device());
  }
  const QuantizedTensor here = to(kCpu);
  auto packed = allocate_like(here.packed(), end - begin, has_half_parameters(here.packed()));
  copy_rows(here.packed(), begin, end - begin, *packed, 0);
  finish_weight(*packed);
  return QuantizedTensor(std::move(packed)).to(device());
}

QuantizedTensor QuantizedTensor::from_nibbles(const TensorView& nibbles, int rank, const std::int64_t* shape,
                                              const TensorView& scales, const TensorView* offsets,
                                              std::int64_t block_size) {
  QCORE_CHECK_VALUE(rank == 2 || rank == 4, "from_parts: shape has ", rank,
                    " dimensions, expected [N, K] or [Co, Ci, Kh, Kw]");
  check_weight_size("from_parts", "shape", rank, shape, block_size);
  TensorView shaped_like;
  shaped_like.rank = rank;
  std::copy(shape, shape + rank, shaped_like.shape);
  const std::int64_t columns = shape[1] * (rank == 4 ? shape[2] * shape[3] : 1);
  const std::int64_t expected[] = {shape[0], ceil_div(columns, 2)};
  check_device("from_parts", "codes", nibbles, kCpu, "every part");
  check_dtype("from_parts", "codes", nibbles, DType::u8);
  check_shape("from_parts", "codes", nibbles, 2, expected);
  auto packed = allocate_weight("from_parts", "shape", shaped_like, 4, block_size,
                                offsets ? Scheme::asymmetric : Scheme::symmetric, are_half(scales, offsets));
  const PackedLayout& layout = packed->layout;
  check_parameter_arrays("from_parts", *packed, scales, offsets);
  const bool whole_steps = layout.taps == 1 && (block_size % layout.step_k() == 0 || layout.blocks() <= 1);
  parallel_for(layout.panels(), [&](std::int64_t panel) {
    Scratch scratch;
    std::uint8_t* together = scratch.take<std::uint8_t>(expected[1]);
    std::int8_t* codes = whole_steps ? nullptr : scratch.take<std::int8_t>(columns + 1);
    std::int8_t* block = whole_steps || !layout.blocks() ? nullptr : scratch.take<std::int8_t>(layout.block_length(0));
    PackedWriter writer(*packed);
    for (std::int64_t row = panel * kRows; row < std::min(layout.n, (panel + 1) * kRows); ++row) {
      const auto* pairs = static_cast<const std::uint8_t*>(nibbles.data) + row * nibbles.strides[0];
      if (nibbles.strides[1] != 1) {
        for (std::int64_t i = 0; i < expected[1]; ++i) together[i] = pairs[i * nibbles.strides[1]];
        pairs = together;
      }
      if (whole_steps) {
        pack_pairs(pairs, layout.k, const_cast<std::uint8_t*>(packed->codes) + layout.place(row, 0).byte);
        continue;
      }
      for (std::int64_t i = 0; i < expected[1]; ++i) {
        codes[2 * i] = static_cast<std::int8_t>((pairs[i] & 15) - 8);
        codes[2 * i + 1] = static_cast<std::int8_t>((pairs[i] >> 4) - 8);
      }
      for (std::int64_t p = 0; p < layout.blocks(); ++p)
        for (std::int64_t tap = 0; tap < layout.taps; ++tap) {
          const std::int64_t length = layout.block_length(p), from = layout.block_begin(p);
          for (std::int64_t i = 0; i < length; ++i) block[i] = codes[(from + i) * layout.taps + tap];
          writer.set_block(row, p, tap, block, length);
        }
    }
  });
  set_parameters(*packed, scales, offsets);
  finish_weight(*packed);
  return QuantizedTensor(std::move(packed));
}

}  // namespace qcore
