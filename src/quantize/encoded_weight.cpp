#include "quantize/encoded_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "quantize/block_reader.h"
#include "quantize/pack_weight.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

constexpr const char* kOp = "from_encoded";
constexpr std::int64_t kRows = PackedLayout::kPanelRows;
constexpr const char* kNames[] = {
    "none",  "float32", "float16", "bfloat16",          "float8_e8m0fnu",   "float8_e4m3fn",
    "uint4", "uint6",   "uint8",   "uint4 zero points", "uint8 zero points"};

const char* name(ParameterType type) { return kNames[static_cast<int>(type)]; }

// Throws unless `view` is an array [n, columns] of a type.
void check_array(const char* op, const char* argument, const TensorView& view, ParameterType type, std::int64_t n,
                 std::int64_t columns) {
  const std::int64_t expected[] = {n, columns};
  check_device(op, argument, view, kCpu, "every part");
  check_dtype(op, argument, view, array_dtype(type));
  check_shape(op, argument, view, 2, expected);
}

void check_given(const char* op, const char* argument, bool given, bool expected, const char* when) {
  QCORE_CHECK_VALUE(given == expected, op, ": ", argument, " is ", given ? "given" : "missing", ", expected it ",
                    expected ? "because " : "with ", when, expected ? "" : " only");
}

// Throws unless the arrays are those of an encoding of a weight [n, k].
void check_arrays(const char* op, const WeightEncoding& encoding, const EncodedParts& parts, std::int64_t n,
                  std::int64_t k, std::int64_t blocks) {
  const std::int64_t supers = encoding.super_block ? ceil_div(blocks, encoding.super_block) : 0;
  check_given(op, "offsets", parts.offsets, encoding.offsets != ParameterType::none, "the encoding has offsets");
  check_given(op, "super_scales", parts.super_scales, is_integer(encoding.scales), "the encoding has integer scales");
  check_given(op, "super_offsets", parts.super_offsets, is_integer(encoding.offsets),
              "the encoding has integer offsets");
  check_array(op, "codes", parts.codes, ParameterType::u8, n, k);
  check_array(op, "scales", parts.scales, encoding.scales, n, blocks);
  if (parts.offsets) check_array(op, "offsets", *parts.offsets, encoding.offsets, n, blocks);
  if (parts.super_scales) check_array(op, "super_scales", *parts.super_scales, ParameterType::f16, n, supers);
  if (parts.super_offsets) check_array(op, "super_offsets", *parts.super_offsets, ParameterType::f16, n, supers);
}

// Throws unless the integers of an array fit their width.
void check_numbers(const char* argument, const TensorView& view, ParameterType type) {
  const std::int64_t n = view.shape[0], columns = view.shape[1];
  const int bits = parameter_bits(type);
  if (bits > 8 || type == ParameterType::u8 || type == ParameterType::z8) return;
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t p = 0; p < columns; ++p) {
      const int number = static_cast<const std::uint8_t*>(view.data)[row * view.strides[0] + p * view.strides[1]];
      if (bits < 8)
        QCORE_CHECK_VALUE(number < 1 << bits, kOp, ": ", argument, " holds ", number, " in row ", row, ", block ", p,
                          ", expected at most ", (1 << bits) - 1, " for ", name(type));
      else
        QCORE_CHECK_VALUE(number != 255 && (type == ParameterType::e8m0 || number != 127), kOp, ": ", argument,
                          " holds ", number, " in row ", row, ", block ", p, ", which is NaN in ", name(type),
                          ", expected numbers");
    }
}

void check_codes(const TensorView& codes, const WeightEncoding& encoding) {
  const int limit = 1 << encoding.bits;
  if (encoding.bits == 8) return;
  for (std::int64_t row = 0; row < codes.shape[0]; ++row)
    for (std::int64_t k = 0; k < codes.shape[1]; ++k) {
      const int u = static_cast<const std::uint8_t*>(codes.data)[row * codes.strides[0] + k * codes.strides[1]];
      QCORE_CHECK_VALUE(u < limit, kOp, ": codes holds ", u, " in row ", row, ", k ", k, ", expected at most ",
                        limit - 1, " for bits=", encoding.bits);
    }
}

// Copies numbers [n, columns] to their places in the weight, or from them.
template <bool kIntoWeight>
void move_numbers(const PackedLayout& layout, const TensorView& array, const EncodedParameters& parameters) {
  const int bits = parameter_bits(parameters.type);
  const Planes planes{bits, kRows};
  parallel_for(layout.panels(), [&](std::int64_t panel) {
    auto* data = const_cast<std::uint8_t*>(parameters.data) + panel * parameters.panel_bytes();
    for (std::int64_t row = panel * kRows; row < std::min(layout.n, (panel + 1) * kRows); ++row)
      for (std::int64_t p = 0; p < parameters.blocks; ++p) {
        const std::int64_t lane = row % kRows, bytes = std::max(1, bits / 8);
        auto* number = static_cast<std::uint8_t*>(array.data) + (row * array.strides[0] + p * array.strides[1]) * bytes;
        if (bits > 8) {
          std::uint8_t* place = data + (p * kRows + lane) * bytes;
          std::memcpy(kIntoWeight ? place : number, kIntoWeight ? number : place, static_cast<std::size_t>(bytes));
        } else if (kIntoWeight) {
          planes.put<std::uint8_t>(data, p, lane, *number);
        } else {
          *number = planes.get<std::uint8_t>(data, p, lane);
        }
      }
  });
}

// The same for super-parameters [n, supers].
template <bool kIntoWeight>
void move_supers(const PackedLayout& layout, const TensorView& array, const EncodedParameters& parameters) {
  auto* data = const_cast<std::uint16_t*>(parameters.super);
  for (std::int64_t row = 0; row < layout.n; ++row)
    for (std::int64_t i = 0; i < parameters.supers(); ++i) {
      std::uint16_t& place = data[(row / kRows * parameters.supers() + i) * kRows + row % kRows];
      std::uint16_t& number = static_cast<std::uint16_t*>(array.data)[row * array.strides[0] + i * array.strides[1]];
      (kIntoWeight ? place : number) = kIntoWeight ? number : place;
    }
}

template <bool kIntoWeight>
void move_parameters(const PackedWeight& weight, const EncodedParts& parts) {
  const EncodedWeight& encoded = *weight.encoded;
  move_numbers<kIntoWeight>(weight.layout, parts.scales, encoded.scales);
  if (parts.offsets) move_numbers<kIntoWeight>(weight.layout, *parts.offsets, encoded.offsets);
  if (parts.super_scales) move_supers<kIntoWeight>(weight.layout, *parts.super_scales, encoded.scales);
  if (parts.super_offsets) move_supers<kIntoWeight>(weight.layout, *parts.super_offsets, encoded.offsets);
}

void check_finite_parameters(const PackedWeight& weight) {
  const PackedLayout& layout = weight.layout;
  for (std::int64_t row = 0; row < layout.n; ++row)
    for (std::int64_t p = 0; p < layout.blocks(); ++p) {
      const float scale = weight.scale(row, p), offset = weight.offset(row, p);
      QCORE_CHECK_VALUE(numerics::is_finite(scale) && numerics::is_finite(offset), kOp, ": row ", row, ", block ", p,
                        " has the scale ", scale, " and the offset ", offset, ", expected finite numbers");
    }
}

// Rows of a panel, from lane to lane; `columns` vectors of numbers in planes or in whole bytes.
void copy_lanes(const std::uint8_t* from, std::int64_t from_row, std::uint8_t* to, std::int64_t to_row, int bits,
                std::int64_t lanes_per_row, std::int64_t columns, std::int64_t from_panel, std::int64_t to_panel) {
  const std::int64_t lanes = kRows * lanes_per_row;
  from += from_row / kRows * from_panel;
  to += to_row / kRows * to_panel;
  if (bits > 8) {
    const std::int64_t bytes = bits / 8;
    for (std::int64_t i = 0; i < columns; ++i)
      std::memcpy(to + (i * lanes + to_row % kRows) * bytes, from + (i * lanes + from_row % kRows) * bytes,
                  static_cast<std::size_t>(bytes));
    return;
  }
  const Planes planes{bits, lanes};
  for (std::int64_t i = 0; i < columns; ++i)
    for (std::int64_t lane = 0; lane < lanes_per_row; ++lane)
      planes.put<std::uint8_t>(to, i, to_row % kRows * lanes_per_row + lane,
                               planes.get<std::uint8_t>(from, i, from_row % kRows * lanes_per_row + lane));
}

// Returns whether zero points give an offset that fp32 does not hold in any block.
bool has_code_shifts(const PackedWeight& weight) {
  for (std::int64_t row = 0; row < weight.layout.n; ++row)
    for (std::int64_t p = 0; p < weight.layout.blocks(); ++p)
      if (weight.encoded->code_shift(row, p)) return true;
  return false;
}

// Returns whether codes of 4 bits without a sign become signed ones by offsets that fp32 holds for all blocks.
bool has_exact_shift(const PackedWeight& weight) {
  const WeightEncoding& encoding = weight.encoded->encoding;
  const int shift = 8 - encoding.zero;
  if (encoding.bits != 4 || !weight.has_offsets() || shift == 0) return false;
  for (std::int64_t row = 0; row < weight.layout.n; ++row)
    for (std::int64_t p = 0; p < weight.layout.blocks(); ++p) {
      const double a = weight.offset(row, p), b = static_cast<double>(weight.scale(row, p)) * shift;
      // The exact error of the sum, by Knuth's two-sum.
      const double total = a + b, part = total - a, lost = (a - (total - part)) + (b - part);
      if (lost != 0 || static_cast<double>(static_cast<float>(total)) != total) return false;
    }
  return true;
}

}  // namespace

bool operator==(const WeightEncoding& a, const WeightEncoding& b) {
  return a.bits == b.bits && a.zero == b.zero && a.has_codebook == b.has_codebook &&
         (!a.has_codebook || std::equal(a.codebook, a.codebook + 16, b.codebook)) && a.scales == b.scales &&
         a.offsets == b.offsets && a.scale_zero == b.scale_zero && a.super_block == b.super_block &&
         a.tensor_scale == b.tensor_scale;
}

void WeightEncoding::check(const char* where) const {
  QCORE_CHECK_VALUE(bits == 8 || (bits >= 2 && bits <= 6), where, ": encoding has bits ", bits,
                    ", expected 2, 3, 4, 5, 6 or 8");
  if (has_codebook)
    QCORE_CHECK_VALUE(bits <= 4, where, ": encoding has a codebook and bits ", bits, ", expected at most 4 bits");
  else if (bits == 8)
    QCORE_CHECK_VALUE(zero == 128, where, ": encoding has bits 8 and zero ", zero,
                      ", expected 128, with which codes lie in [-128, 127]");
  else
    QCORE_CHECK_VALUE(zero >= 0 && zero <= 128, where, ": encoding has zero ", zero, ", expected 0 to 128");
  QCORE_CHECK_VALUE(scales != ParameterType::none, where, ": encoding has no type of scales, expected one");
  QCORE_CHECK_VALUE(!is_zero_point(scales), where, ": encoding has zero points as scales, expected numbers");
  QCORE_CHECK_VALUE(!has_codebook || !is_zero_point(offsets), where,
                    ": encoding has a codebook and zero points, expected one of them");
  QCORE_CHECK_VALUE(offsets != ParameterType::e8m0 && offsets != ParameterType::e4m3, where,
                    ": encoding has offsets of the type ", name(offsets),
                    ", expected float32, float16, bfloat16, integers or zero points");
  QCORE_CHECK_VALUE(scale_zero >= 0 && scale_zero <= 255, where, ": encoding has scale_zero ", scale_zero,
                    ", expected 0 to 255");
  QCORE_CHECK_VALUE(numerics::is_finite(tensor_scale), where, ": encoding has tensor_scale ", tensor_scale,
                    ", expected a finite number");
  const bool supers = is_integer(scales) || is_integer(offsets);
  QCORE_CHECK_VALUE(supers ? super_block >= 1 : super_block == 0, where, ": encoding has super_block ", super_block,
                    ", expected ", supers ? "1 or more with" : "0 without", " integer scales or offsets");
}

std::shared_ptr<PackedWeight> allocate_encoded(const WeightEncoding& encoding, std::int64_t n, std::int64_t k,
                                               std::int64_t block_size) {
  auto weight = std::make_shared<PackedWeight>();
  weight->layout = PackedLayout(n, k, 1, block_size, 8);
  weight->shape[0] = n, weight->shape[1] = k;
  weight->scheme = encoding.offsets == ParameterType::none ? Scheme::symmetric : Scheme::asymmetric;
  const std::int64_t bytes = EncodedWeight(encoding, weight->layout).parts(weight->layout).bytes;
  auto memory = allocate_long_lived(bytes);
  std::memset(memory.get(), 0, static_cast<std::size_t>(bytes));
  weight->set_encoded_memory(encoding, std::move(memory));
  return weight;
}

void copy_encoded_rows(const PackedWeight& from, std::int64_t begin, std::int64_t count, const PackedWeight& to,
                       std::int64_t at) {
  const EncodedWeight &a = *from.encoded, &b = *to.encoded;
  const std::int64_t steps = from.layout.steps(), first = at / kRows, panels = ceil_div(at + count, kRows) - first;
  const auto writable = [](const void* data) { return static_cast<std::uint8_t*>(const_cast<void*>(data)); };
  parallel_for(panels, [&](std::int64_t panel) {
    const std::int64_t top = (first + panel) * kRows;
    for (std::int64_t row = std::max(at, top); row < std::min(at + count, top + kRows); ++row) {
      const std::int64_t source = begin + row - at;
      copy_lanes(from.codes, source, writable(to.codes), row, a.encoding.bits, PackedLayout::kStepBytes / kRows, steps,
                 a.code_panel_bytes(from.layout), b.code_panel_bytes(to.layout));
      for (const auto parameters : {&EncodedWeight::scales, &EncodedWeight::offsets}) {
        const EncodedParameters &x = a.*parameters, &y = b.*parameters;
        if (x.type == ParameterType::none) continue;
        copy_lanes(x.data, source, writable(y.data), row, parameter_bits(x.type), 1, x.blocks, x.panel_bytes(),
                   y.panel_bytes());
        if (!is_integer(x.type)) continue;
        const std::int64_t super_bytes = x.supers() * kRows * 2;
        copy_lanes(reinterpret_cast<const std::uint8_t*>(x.super), source, writable(y.super), row, 16, 1, x.supers(),
                   super_bytes, super_bytes);
      }
    }
  });
}

QuantizedTensor QuantizedTensor::from_encoded(const WeightEncoding& encoding, const EncodedParts& parts,
                                              std::int64_t block_size) {
  encoding.check(kOp);
  const TensorView& codes = parts.codes;
  QCORE_CHECK_VALUE(codes.rank == 2, kOp, ": codes has shape ", shape_string(codes), ", expected [N, K]");
  check_weight_size(kOp, "codes", codes.rank, codes.shape, block_size);
  const std::int64_t n = codes.shape[0], blocks = ceil_div(codes.shape[1], block_size);
  check_arrays(kOp, encoding, parts, n, codes.shape[1], blocks);
  check_numbers("scales", parts.scales, encoding.scales);
  if (parts.offsets) check_numbers("offsets", *parts.offsets, encoding.offsets);
  check_codes(codes, encoding);

  auto packed = allocate_encoded(encoding, n, codes.shape[1], block_size);
  const PackedLayout& layout = packed->layout;
  const EncodedWeight& encoded = *packed->encoded;
  const Planes planes = encoded.code_planes();
  parallel_for(layout.panels(), [&](std::int64_t panel) {
    auto* data = const_cast<std::uint8_t*>(packed->codes) + panel * encoded.code_panel_bytes(layout);
    for (std::int64_t row = panel * kRows; row < std::min(n, (panel + 1) * kRows); ++row) {
      const auto* from = static_cast<const std::uint8_t*>(codes.data) + row * codes.strides[0];
      for (std::int64_t p = 0; p < blocks; ++p) {
        const std::int64_t step = layout.block_first_step(p), first = layout.block_begin(p);
        const std::int64_t step_k = layout.step_k(), length = layout.block_length(p);
        for (std::int64_t k = 0; k < length; k += step_k) {
          std::uint32_t numbers = 0;
          for (std::int64_t i = std::min(length, k + step_k) - 1; i >= k; --i)
            numbers = numbers << 8 | from[(first + i) * codes.strides[1]];
          planes.put<std::uint32_t>(data, step + k / step_k, step_k * (row % kRows), numbers);
        }
      }
    }
  });
  move_parameters<true>(*packed, parts);
  check_finite_parameters(*packed);
  return QuantizedTensor(std::move(packed));
}

void QuantizedTensor::encoded_parts(const EncodedParts& out) const {
  const char* op = "encoded_parts";
  QCORE_CHECK_VALUE(packed_->encoded.has_value(), op, ": the weight has plain codes of ", bits(),
                    " bits, expected an encoded weight");
  QCORE_CHECK_VALUE(device() == kCpu, op, ": the weight is on ", qcore::name(device()),
                    ", expected cpu: call to() first");
  const PackedLayout& layout = packed_->layout;
  const EncodedWeight& encoded = *packed_->encoded;
  check_arrays(op, encoded.encoding, out, layout.n, layout.k, layout.blocks());
  const Planes planes = encoded.code_planes();
  const std::int64_t step_k = layout.step_k();
  parallel_for(layout.panels(), [&](std::int64_t panel) {
    const auto* data = static_cast<const std::uint8_t*>(packed_->codes) + panel * encoded.code_panel_bytes(layout);
    for (std::int64_t row = panel * kRows; row < std::min(layout.n, (panel + 1) * kRows); ++row) {
      auto* to = static_cast<std::uint8_t*>(out.codes.data) + row * out.codes.strides[0];
      for (std::int64_t p = 0; p < layout.blocks(); ++p) {
        const std::int64_t step = layout.block_first_step(p), length = layout.block_length(p);
        std::uint8_t* block = to + layout.block_begin(p) * out.codes.strides[1];
        for (std::int64_t k = 0; k < length; k += step_k) {
          std::uint32_t numbers = planes.get<std::uint32_t>(data, step + k / step_k, step_k * (row % kRows));
          for (std::int64_t i = k; i < std::min(length, k + step_k); ++i, numbers >>= 8)
            block[i * out.codes.strides[1]] = static_cast<std::uint8_t>(numbers);
        }
      }
    }
  });
  move_parameters<false>(*packed_, out);
}

QuantizedTensor QuantizedTensor::plain() const {
  if (!packed_->encoded) return *this;
  if (device() != kCpu) return to(kCpu).plain().to(device());
  const PackedLayout& layout = packed_->layout;
  const WeightEncoding& encoding = packed_->encoded->encoding;
  const bool codebook = encoding.has_codebook;
  const int lowest = codebook ? *std::min_element(encoding.codebook, encoding.codebook + 16) : -encoding.zero;
  const int highest = codebook ? *std::max_element(encoding.codebook, encoding.codebook + 16)
                               : (1 << encoding.bits) - 1 - encoding.zero;
  const bool exact_offsets = !has_code_shifts(*packed_);
  const int shift = !codebook && exact_offsets && has_exact_shift(*packed_) ? 8 - encoding.zero : 0;
  TensorView shape;
  shape.rank = 2;
  shape.shape[0] = layout.n, shape.shape[1] = layout.k;
  auto made =
      allocate_weight("plain", "weight", shape, exact_offsets && lowest >= -8 + shift && highest <= 7 + shift ? 4 : 8,
                      layout.block_size, packed_->scheme);
  PackedWriter writer(*made);
  const BlockReader reader(*packed_);
  for_each_block(layout, [&](std::int64_t row, std::int64_t p, std::int64_t) {
    const std::int64_t length = layout.block_length(p);
    Scratch scratch;
    std::int8_t* codes = scratch.take<std::int8_t>(length);
    reader.read(row, p, 0, codes);
    const float scale = packed_->scale(row, p);
    float offset = packed_->offset(row, p) + static_cast<float>(shift) * scale;
    int added = -shift;
    if (const int zero = exact_offsets ? 0 : packed_->encoded->code_shift(row, p)) {
      const auto [least, greatest] = std::minmax_element(codes, codes + length);
      if (*least + zero >= -128 && *greatest + zero <= 127) added = zero, offset = 0.0f;
    }
    for (std::int64_t k = 0; k < length; ++k) codes[k] = static_cast<std::int8_t>(codes[k] + added);
    writer.set_block(row, p, 0, codes, length);
    writer.set_parameters(row, p, scale, offset);
  });
  finish_weight(*made);
  return QuantizedTensor(std::move(made));
}

}  // namespace qcore
